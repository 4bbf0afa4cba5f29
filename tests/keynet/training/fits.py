"""Short fits that are stopped and go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint


def trainer(folder: Path, *callbacks: pl.Callback, epochs: int = 4) -> pl.Trainer:
    """As ``train.py`` makes it: a checkpoint an epoch of two steps."""
    # With save_top_k=0 Lightning 2.6 writes last.ckpt at the end of the training alone.
    checkpoint = ModelCheckpoint(
        folder / "checkpoints", filename="last", save_top_k=1, enable_version_counter=False
    )
    return pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=epochs, gradient_clip_val=1.0, logger=False,
        default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[checkpoint, *callbacks],
        log_every_n_steps=1,
    )  # fmt: skip


class KilledError(Exception):
    """Stands for a process that ends in the middle of an epoch."""


class KillAt(pl.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise KilledError


class Rates(pl.Callback):
    """Learning rates of all groups, each step."""

    def __init__(self) -> None:
        self.rates: list[list[float]] = []

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])
