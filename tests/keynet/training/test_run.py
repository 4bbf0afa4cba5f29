from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from keynet.training.run import (
    CONFIG,
    FREE,
    TRAINING_STATE,
    RunError,
    epochs,
    open_run,
    point_latest,
)


def config(**changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": "demo", "seed": 0, "run_dir": "somewhere", "num_workers": 0,
        "data": {"source": {"visits": 8, "hold_out_vendor": None}, "num_workers": 0},
        "encoder": {"text": {"width": 256}}, "trainer": {"accelerator": "cpu"},
        "evaluation": {"visits": 3000},
    }  # fmt: skip
    return made | changes


def begin(run: Path, **changes: Any) -> Path:
    """Open a run and leave a checkpoint in it, as a training does."""
    open_run(run, config(**changes))
    checkpoint = run / "checkpoints" / "last.ckpt"
    state = dict.fromkeys(TRAINING_STATE, 0) | {"state_dict": {"w": torch.randn(64, 64)}}
    torch.save(state, checkpoint)
    return checkpoint


def test_a_new_directory_is_made_and_keeps_the_configuration(tmp_path: Path) -> None:
    run = tmp_path / "outputs" / "demo" / "now"
    assert open_run(run, config()) is None
    assert yaml.safe_load((run / CONFIG).read_text()) == config()
    assert (run / "checkpoints").is_dir()
    assert sorted(p.name for p in run.iterdir()) == ["checkpoints", CONFIG]


def test_the_same_configuration_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    open_run(tmp_path, config())
    assert open_run(tmp_path, config()) is None
    checkpoint = begin(tmp_path)
    assert open_run(tmp_path, config()) == checkpoint


def test_a_run_that_trained_nothing_takes_the_corrected_configuration(tmp_path: Path) -> None:
    open_run(tmp_path, config(seed=1))
    assert open_run(tmp_path, config()) is None
    assert yaml.safe_load((tmp_path / CONFIG).read_text()) == config()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, r"seed was 0 and is 1;"),
        ({"encoder": {"text": {"width": 384}}}, r"encoder\.text\.width was 256 and is 384"),
        ({"data": {"source": {"visits": 8, "hold_out_vendor": "openmoji"}, "num_workers": 0}},
         r"data\.source\.hold_out_vendor was None and is 'openmoji'"),
        ({"bits": 64}, r"bits was None and is 64"),
        ({"seed": 1, "name": "other"}, r"name was 'demo' and is 'other'"),
        ({"encoder": "tiny"}, r"encoder was \{'text': .* and is 'tiny'"),
    ],
)  # fmt: skip
def test_another_configuration_is_refused_by_its_first_difference(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    begin(tmp_path)
    with pytest.raises(RunError, match=rf"belongs to another configuration: {message}"):
        open_run(tmp_path, config(**changes))
    assert yaml.safe_load((tmp_path / CONFIG).read_text()) == config()


def test_a_key_that_is_gone_is_a_difference(tmp_path: Path) -> None:
    begin(tmp_path, loss={"a": 1, "b": 2})
    with pytest.raises(RunError, match=r"loss\.b was 2 and is None"):
        open_run(tmp_path, config(loss={"a": 1}))


@pytest.mark.parametrize("name", FREE)
def test_what_changes_no_key_may_differ(tmp_path: Path, name: str) -> None:
    checkpoint = begin(tmp_path)
    assert open_run(tmp_path, config(**{name: "other"})) == checkpoint


def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    trainer = {"accelerator": "auto", "devices": 2, "num_nodes": 1}
    checkpoint = begin(tmp_path, trainer=trainer)
    other = trainer | {"devices": 4, "num_nodes": 2}
    assert open_run(tmp_path, config(trainer=other)) == checkpoint


def test_of_several_processes_the_first_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert open_run(tmp_path, config()) is None
    assert not (tmp_path / CONFIG).exists()
    monkeypatch.setenv("RANK", "0")
    checkpoint = begin(tmp_path)
    monkeypatch.setenv("RANK", "1")
    assert open_run(tmp_path, config()) == checkpoint
    with pytest.raises(RunError, match="seed was 0 and is 1"):
        open_run(tmp_path, config(seed=1))


def test_a_torchrun_without_an_id_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(RunError, match="add --standalone or --rdzv-id=NAME to torchrun"):
        open_run(tmp_path / "none", config())
    assert not (tmp_path / "none").exists()
    assert open_run(tmp_path / "named", config()) is None


def test_the_number_of_workers_may_differ_where_it_is_read(tmp_path: Path) -> None:
    """``num_workers`` at the root is resolved into the data node as well."""
    checkpoint = begin(tmp_path)
    data = config()["data"] | {"num_workers": 4}
    assert open_run(tmp_path, config(num_workers=4, data=data)) == checkpoint


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"not a checkpoint", pickle.dumps({"state_dict": 1}, 2)[:9], pickle.dumps([1, 2], 2),
        b"PK\x03\x04" + bytes(100), b"\x80\x02}q\x00.", bytes(range(256)),
    ],
    ids=["empty", "text", "cut pickle", "list", "broken zip", "empty dict", "bytes"],
)  # fmt: skip
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: bytes) -> None:
    open_run(tmp_path, config())
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(damage)
    with pytest.raises(RunError, match=r"last\.ckpt is damaged or no checkpoint of this program"):
        open_run(tmp_path, config())


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.99])
def test_a_checkpoint_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    checkpoint = begin(tmp_path)
    checkpoint.write_bytes(checkpoint.read_bytes()[: int(share * checkpoint.stat().st_size)])
    with pytest.raises(RunError, match="is damaged"):
        open_run(tmp_path, config())


@pytest.mark.parametrize(
    "content",
    [{"state_dict": {"w": torch.zeros(2)}}, [1], torch.zeros(3)],
    ids=["weights", "list", "tensor"],
)
def test_a_foreign_file_of_torch_is_refused(tmp_path: Path, content: object) -> None:
    open_run(tmp_path, config())
    torch.save(content, tmp_path / "checkpoints" / "last.ckpt")
    with pytest.raises(RunError, match="is damaged or no checkpoint"):
        open_run(tmp_path, config())


def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "touched",)

    open_run(tmp_path, config())
    (tmp_path / "checkpoints" / "last.ckpt").write_bytes(pickle.dumps({"state_dict": Evil()}, 2))
    with pytest.raises(RunError, match="is damaged"):
        open_run(tmp_path, config())
    assert not (tmp_path / "touched").exists()


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        RunError, match=r"file/run cannot be written \(.+\); give another: run_dir="
    ):
        open_run(tmp_path / "file" / "run", config())
    with pytest.raises(RunError, match="cannot be written"):
        open_run(tmp_path / "file", config())
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("content", ["", "- 1\n", "a: [1\n", "just words"])
def test_a_damaged_configuration_is_refused(tmp_path: Path, content: str) -> None:
    begin(tmp_path)
    (tmp_path / CONFIG).write_text(content)
    with pytest.raises(RunError, match=r"config\.yaml"):
        open_run(tmp_path, config())


def test_latest_points_to_the_newest_run(tmp_path: Path) -> None:
    for name in ("first", "second", "second"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "report.json").write_text(name)
        point_latest(tmp_path / name)
        latest = tmp_path / "latest"
        assert latest.is_symlink()
        assert os.readlink(latest) == name  # relative: outputs/ may be moved
        assert (latest / "report.json").read_text() == name
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "latest", "second"]


def test_latest_of_a_relative_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outputs" / "run").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    point_latest("outputs/run")
    assert (tmp_path / "outputs" / "latest").resolve() == tmp_path / "outputs" / "run"


def test_latest_given_as_the_run_directory_does_not_point_to_itself(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    point_latest(tmp_path / "first")
    point_latest(tmp_path / "latest")
    assert (tmp_path / "latest").resolve() == tmp_path / "first"


def test_steps_are_whole_epochs() -> None:
    assert epochs(400, 50) == 8
    for steps, each in ((20, 50), (60, 50), (0, 50), (50, 0)):
        with pytest.raises(RunError, match=f"steps={steps} is not a positive multiple"):
            epochs(steps, each)
