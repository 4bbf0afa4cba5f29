"""What a key model is trained on, kept in its checkpoints: the data may change between two runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from keynet.export.manifest import MANIFEST
from keynet.export.trained_on import Numbers, read_trained_on

log = logging.getLogger(__name__)


class TrainedOn(pl.Callback):
    """Collects the data's ``trained_on`` of every process that trains a run.

    ``found`` are the numbers [N] once the fit has ended: of this run, wherever it was stopped and
    went on, and of the run that it started from; None where that one does not tell.
    """

    def __init__(self) -> None:
        self.found: Numbers | None = None
        self._own = np.empty(0, np.uint64)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the data; a finished run, which is only exported again, does not come here."""
        self._add(trainer)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Tell ``found``."""
        if not len(self._own):  # it was finished before checkpoints told
            self._add(trainer)
        self.found = self._own
        start: Any = getattr(pl_module, "start_from", None)
        if start is not None:
            export = Path(start) / "export"
            before = read_trained_on(export) if (export / MANIFEST).exists() else None
            if before is None:
                log.warning(
                    "start_from=%s does not tell what it was trained on, so that this export does "
                    "not either; export that run again first, with the command of its training",
                    start,
                )
            self.found = None if before is None else np.union1d(before, self._own)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {"numbers": torch.from_numpy(self._own.view(np.int64))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what a checkpoint keeps."""
        self._own = state_dict["numbers"].numpy().view(np.uint64)

    def _add(self, trainer: pl.Trainer) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self._own = np.union1d(self._own, data.trained_on)
