"""What a key model is trained on, kept in its checkpoints: the data may change between two runs."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from keynet.export.trained_on import Numbers
from keynet.training.run import RunError

log = logging.getLogger(__name__)


class TrainedOn(pl.Callback):
    """Collects the data's ``trained_on``, and lets no run go on with another tokenizer.

    ``found`` are the numbers [N] of this run, wherever it was stopped and went on, and of the run
    that it started from; None where a checkpoint of either is from before they told.
    """

    def __init__(self) -> None:
        self.found: Numbers | None = np.empty(0, np.uint64)
        self._tokenizer = ""  # of the checkpoint; then of the data

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare with the checkpoint that is gone on from, or take what is started from.

        Raises:
            RunError: When the data has changed so that texts are other tokens now.
        """
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        tokenizer = hashlib.sha256(data.preprocessor.tokenizer_json.encode()).hexdigest()
        start: Any = getattr(pl_module, "start_from", None)
        if self._tokenizer not in ("", tokenizer):
            raise RunError(
                f"{trainer.default_root_dir}: the data has changed since this run began, so that "
                "its texts make another tokenizer, with which its weights mean nothing; give the "
                "data as it was, or train anew in another run_dir"
            )
        if self._tokenizer == "" and trainer.ckpt_path is not None:
            self._unknown(f"the checkpoint of {trainer.default_root_dir}")
        elif self._tokenizer == "" and start is not None:
            checkpoint = Path(start) / "checkpoints" / "last.ckpt"
            content: Any = torch.load(checkpoint, map_location="cpu", weights_only=True)
            state = content.get("callbacks", {}).get(self.state_key, {"numbers": None})
            self.load_state_dict({**state, "tokenizer": tokenizer})
            if self.found is None:
                self._unknown(f"start_from={start}")
        self._tokenizer = tokenizer

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the data; a finished run, which is only exported again, does not come here."""
        if self.found is not None:
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            self.found = np.union1d(self.found, data.trained_on)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        numbers = None if self.found is None else torch.from_numpy(self.found.view(np.int64))
        return {"numbers": numbers, "tokenizer": self._tokenizer}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what a checkpoint keeps."""
        numbers = state_dict["numbers"]
        self.found = None if numbers is None else numbers.numpy().view(np.uint64)
        self._tokenizer = state_dict["tokenizer"]

    def _unknown(self, what: str) -> None:
        self.found = None
        log.warning(
            "%s does not tell what it was trained on, so that the export will not either, and "
            "nothing is left out when it is judged on other splits",
            what,
        )
