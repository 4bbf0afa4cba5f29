"""Progress of a long training as lines: step, loss, speed, time left."""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

import pytorch_lightning as pl

from keynet.training.launch import launched

log = logging.getLogger("train")

# Advice that does not hold here: few workers are meant (batches are in memory), frozen parts are
# meant to be in evaluation mode, a resumed run's checkpoint folder is its own, and the strides of
# depthwise convolutions name one layout in two ways.
ADVICE = (
    "does not have many workers",
    "module\\(s\\) in eval mode",
    "The number of training batches",
    "isinstance\\(treespec, LeafSpec\\)",
    "Checkpoint directory .* exists and is not empty",
    "Grad strides do not match bucket view strides",
)


def quiet() -> None:
    """Silence Lightning's advertising, the advice that does not hold here, and all ranks but one.

    Other ranks still tell their errors.
    """
    if launched()[0]:
        logging.disable(logging.WARNING)
        warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    for message in ADVICE:
        warnings.filterwarnings("ignore", message=f".*{message}")


class Progress(pl.Callback):
    """Logs a line at the end of each epoch, readable in a terminal and in a file alike."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remember when and where this process began."""
        self._start, self._first = time.monotonic(), trainer.global_step

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log where the training stands."""
        steps: Any = trainer.estimated_stepping_batches
        done = trainer.global_step
        pace = (time.monotonic() - self._start) / max(1, done - self._first)
        left = (steps - done) * pace
        loss = trainer.callback_metrics.get("loss")
        log.info(
            "step %d of %d, loss %.3f, %.2f s a step, %d min %02d s left",
            done, steps, float("nan") if loss is None else float(loss), pace, left // 60, left % 60,
        )  # fmt: skip
