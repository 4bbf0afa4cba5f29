"""What a run says it was trained on, when its data change before it goes on or is exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from data.datamodule import RequestDataModule
from data.held_out import content_numbers
from keynet.training.fit import fit
from keynet.training.module import KeyModule
from keynet.training.run import RunError
from keynet.types import Request

MakeModule = Callable[..., KeyModule]
Trained = Callable[..., np.ndarray | None]


@pytest.fixture
def halves(toy_source: Any) -> tuple[list[Request], list[Request]]:
    """Requests about one half of the pictures, and about the other."""
    every = toy_source.requests("train")
    known = dict.fromkeys(r.image for r in every)
    first = set(list(known)[: len(known) // 2])
    return [r for r in every if r.image in first], [r for r in every if r.image not in first]


@pytest.fixture
def trained(
    tmp_path: Path,
    make_module: MakeModule,
    make_data: Callable[..., RequestDataModule],
) -> Trained:
    """What fits a run until an epoch, on some requests, and returns what it was trained on."""

    def run(requests: Sequence[Request], epochs: int, **options: Any) -> np.ndarray | None:
        data = make_data()
        data.requests = list(requests)
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_epochs=epochs, logger=False,
            default_root_dir=tmp_path, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False,
        )  # fmt: skip
        checkpoint = tmp_path / "last.ckpt"
        given = checkpoint if checkpoint.exists() else None
        found = fit(trainer, make_module(**options), data, given, tmp_path)
        trainer.save_checkpoint(checkpoint)
        return found

    return run


def numbers(*requests: list[Request]) -> list[int]:
    return sorted({int(number) for some in requests for number in content_numbers(some)})


def test_a_run_is_trained_on_its_requests(trained: Trained, halves: Any) -> None:
    found = trained(halves[0], 1)
    assert found is not None and found.dtype == np.uint64
    assert found.tolist() == numbers(halves[0])


@pytest.mark.parametrize(("epochs", "parts"), [(1, 1), (2, 2)], ids=["finished", "goes on"])
def test_a_run_with_other_data_was_trained_on_what_it_saw(
    trained: Trained, halves: Any, epochs: int, parts: int
) -> None:
    trained(halves[0], 1)
    found = trained(halves[1], epochs)
    assert found is not None
    assert found.tolist() == numbers(*halves[:parts]) != numbers(halves[1])


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_run_from_before_checkpoints_told_does_not_tell(
    trained: Trained, halves: Any, tmp_path: Path, epochs: int, caplog: pytest.LogCaptureFixture
) -> None:
    trained(halves[0], 1)
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    content["callbacks"] = {}
    torch.save(content, tmp_path / "last.ckpt")
    assert trained(halves[0], epochs) is None
    assert "does not tell what it was trained on, so that the export will not either" in caplog.text
    assert trained(halves[0], epochs) is None  # nor later


def test_a_run_does_not_go_on_with_another_tokenizer(
    trained: Trained, halves: Any, tmp_path: Path
) -> None:
    trained(halves[0], 1)
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    content["callbacks"]["TrainedOn"]["tokenizer"] = "of other texts"
    torch.save(content, tmp_path / "last.ckpt")
    for epochs in (1, 2):
        with pytest.raises(RunError, match="the data has changed since this run began"):
            trained(halves[0], epochs)


def test_a_run_that_starts_from_another_was_trained_on_its_data_too(
    trained: Trained,
    halves: Any,
    make_data: Callable[..., RequestDataModule],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trained(halves[0], 1)
    first = tmp_path / "first"
    (first / "checkpoints").mkdir(parents=True)
    (first / "export").mkdir()
    last = (tmp_path / "last.ckpt").rename(first / "checkpoints" / "last.ckpt")
    tokenizer = make_data().preprocessor.tokenizer_json
    (first / "export" / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    found = trained(halves[1], 1, start_from=str(first))
    assert found is not None
    assert found.tolist() == numbers(*halves)
    again = trained(halves[1], 1, start_from=str(first))  # goes on: from its own checkpoint
    assert again is not None and again.tolist() == found.tolist()
    (tmp_path / "last.ckpt").unlink()
    content = torch.load(last, weights_only=True)
    del content["callbacks"]
    torch.save(content, last)
    assert trained(halves[1], 1, start_from=str(first)) is None
    assert f"start_from={first} does not tell what it was trained on" in caplog.text
