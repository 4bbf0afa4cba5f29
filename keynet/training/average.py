"""The mean of a key model's weights over the last steps of its training."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

OF_MEAN, OF_MODULE = "module.", "model."  # prefixes of a key model's weights


class TailAverage(pl.Callback):
    """Gives the key model, when a fit ends, the mean of its weights after each of the last steps.

    The steps themselves go on from the weights as they are. Checkpoints keep both; ``key_weights``
    finds those that count.

    Args:
        share: Of all steps, above 0 up to 1.

    Raises:
        ValueError: When the share is none.

    Source: Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization
    (SWA), UAI 2018; of BatchNorm's statistics the mean is taken, too.
    """

    def __init__(self, share: float) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"module.average={share}: expected a share of the steps, or 0")
        self.share = share
        self._mean: Any = None  # torch gives no types
        self._kept: dict[str, Any] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Begin, or go on from a checkpoint."""
        self._mean = AveragedModel(pl_module.model, use_buffers=True)
        if self._kept:
            self._mean.load_state_dict(self._kept)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *args: Any) -> None:
        """Take in the weights, if this step is one of the last."""
        steps = trainer.estimated_stepping_batches
        if trainer.global_step > steps - max(1, round(self.share * steps)):
            self._mean.update_parameters(pl_module.model)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Hand over the mean; of a fit that was finished before, too."""
        if self._mean.n_averaged:
            pl_module.model.load_state_dict(self._mean.module.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: nothing before the last steps."""
        begun = self._mean is not None and self._mean.n_averaged
        return dict(self._mean.state_dict()) if begun else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what a checkpoint keeps."""
        self._kept = state_dict


def key_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Return a key model's weights by name: their mean, where the checkpoint of a run has one."""
    mean = checkpoint.get("callbacks", {}).get(TailAverage.__name__)
    state, prefix = (mean, OF_MEAN) if mean else (checkpoint["state_dict"], OF_MODULE)
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}
