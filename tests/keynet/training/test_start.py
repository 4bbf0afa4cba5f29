from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from aligners.clip_adapter import ClipAdapter
from aligners.low_rank_adapter import LowRankAdapter
from keynet.training.module import KeyModule
from keynet.training.start import StartError, start_from

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
    start_from(model, run, TOKENIZER, ADAPTER)
    expected = make_module(seed=1).model.state_dict()
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
