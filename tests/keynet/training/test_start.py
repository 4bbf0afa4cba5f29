from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from aligners.clip_adapter import ClipAdapter
from aligners.low_rank_adapter import LowRankAdapter
from keynet.training.module import KeyModule
from keynet.training.run import CONFIG
from keynet.training.start import StartError, start_from, weights_digest

Make = Callable[..., KeyModule]
TOKENIZER = '{"model": "bpe"}'
ADAPTER = "image_adapter"


@pytest.fixture
def run(tmp_path: Path, make_module: Make) -> Path:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "tokenizer.json").write_text(TOKENIZER)
    state = {"state_dict": make_module(seed=1).state_dict()}
    torch.save(state, tmp_path / "checkpoints" / "last.ckpt")
    return tmp_path


def test_it_has_the_weights_of_the_run(run: Path, make_module: Make) -> None:
    model = make_module(seed=2).model
    found = start_from(model, run, TOKENIZER, ADAPTER)
    expected = make_module(seed=1).model.state_dict()
    assert found == weights_digest(expected) != weights_digest(make_module(seed=2).state_dict())
    assert not [n for n, t in model.state_dict().items() if not torch.equal(t, expected[n])]


def test_a_new_adapter_keeps_its_own(run: Path, make_module: Make) -> None:
    model: Any = make_module(seed=2).model
    model.image_adapter = LowRankAdapter(dim=12, rank=2)
    own = model.image_adapter.down.weight.detach().clone()
    start_from(model, run, TOKENIZER, ADAPTER)
    assert torch.equal(model.image_adapter.down.weight, own)


def test_a_new_adapter_that_moves_keys_is_an_error(run: Path, make_module: Make) -> None:
    model: Any = make_module(seed=2).model
    model.image_adapter = ClipAdapter(dim=12)
    with pytest.raises(StartError, match="take adapter=low_rank"):
        start_from(model, run, TOKENIZER, ADAPTER)


def test_another_tokenizer_is_an_error(run: Path, make_module: Make) -> None:
    with pytest.raises(StartError, match="its tokenizer is another"):
        start_from(make_module().model, run, "{}", ADAPTER)


def test_another_composition_is_an_error_and_changes_nothing(run: Path, make_module: Make) -> None:
    model: Any = make_module(seed=2).model
    model.aligner = nn.Linear(3, 3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(StartError, match=r"another composition.*such as aligner"):
        start_from(model, run, TOKENIZER, ADAPTER)
    assert not [n for n, t in model.state_dict().items() if not torch.equal(t, before[n])]


@pytest.mark.parametrize("what", ["missing", "cut", "no checkpoint", "no export"])
def test_a_run_that_is_none_is_one_line(run: Path, make_module: Make, what: str) -> None:
    checkpoint = run / "checkpoints" / "last.ckpt"
    if what == "missing":
        checkpoint.unlink()
    elif what == "cut":
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    elif what == "no checkpoint":
        torch.save({"weights": 1}, checkpoint)
    else:
        (run / "export" / "tokenizer.json").unlink()
    with pytest.raises(StartError, match="no finished run is there") as error:
        start_from(make_module().model, run, TOKENIZER, ADAPTER)
    assert "\n" not in str(error.value)


def configured(folder: Path, **changes: Any) -> Path:
    """Write what ``open_run`` writes, as far as it makes keys."""
    made = {
        "encoder": {"image": {"frozen_blocks": 5}},
        "adapter": {"_target_": "torch.nn.Identity"},
        "aligner": {"dropout": 0.1},
        "fusion": {"alpha": 0.6},
        "hash_head": {"bits": 64},
        "data": {"image_size": 16, "max_tokens": 32, "long_text": "error", "batch_size": 16},
    }
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(yaml.safe_dump(made | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fusion": {"alpha": 0.2}}, r"fusion\.alpha was 0\.6 and is 0\.2"),
        (
            {"data": {"image_size": 24, "max_tokens": 32, "long_text": "error"}},
            r"data\.image_size was 16 and is 24",
        ),
        ({"encoder": {}}, r"encoder\.image was"),
    ],
)
def test_options_that_make_other_keys_are_an_error(
    run: Path, make_module: Make, changes: dict[str, Any], message: str
) -> None:
    configured(run)
    model = make_module(seed=2).model
    before = weights_digest(model.state_dict())
    with pytest.raises(StartError, match=message):
        start_from(model, run, TOKENIZER, ADAPTER, configured(run / "now", **changes))
    assert weights_digest(model.state_dict()) == before


def test_other_options_may_differ(run: Path, make_module: Make) -> None:
    model = make_module(seed=2).model
    now = run / "now"
    start_from(model, run, TOKENIZER, ADAPTER, configured(now))  # of the run nothing is known
    configured(run)
    configured(now, aligner={"dropout": 0.3}, adapter={"_target_": "LowRank", "rank": 2}, name="b")
    start_from(model, run, TOKENIZER, ADAPTER, now)
    (now / CONFIG).unlink()
    start_from(model, run, TOKENIZER, ADAPTER, now)


def test_one_adapter_with_other_options_is_an_error(run: Path, make_module: Make) -> None:
    configured(run, adapter={"_target_": "Clip", "ratio": 0.2})
    now = configured(run / "now", adapter={"_target_": "Clip", "ratio": 0.5})
    with pytest.raises(StartError, match=r"adapter\.ratio was 0\.2 and is 0\.5"):
        start_from(make_module().model, run, TOKENIZER, ADAPTER, now)


@pytest.mark.parametrize("content", ["{", "[]", "encoder: {}", "\x00"])
def test_a_configuration_that_is_none_is_one_line(
    run: Path, make_module: Make, content: str
) -> None:
    now = configured(run / "now")
    (run / CONFIG).write_text(content)
    with pytest.raises(StartError, match=r"config\.yaml is damaged"):
        start_from(make_module().model, run, TOKENIZER, ADAPTER, now)
