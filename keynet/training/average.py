"""The mean of a key model's weights over the last steps of its training."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

OF_MEAN, OF_MODULE = "module.", "model."  # prefixes of a key model's weights
STATE = "TailAverage"  # of a checkpoint's callbacks


class TailAverage(pl.Callback):
    """Gives the key model, when a fit ends, the mean of its weights after each of the last steps.

    The steps themselves go on from the weights as they are. Checkpoints keep both; ``key_weights``
    finds those that count. Lightning's WeightAveraging copies the whole module, before its setup
    has made what it trains, and hands over no mean of a finished fit.

    Args:
        share: Of all steps, above 0 up to 1.

    Source: Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization
    (SWA), UAI 2018; of BatchNorm's statistics the mean is taken, too.
    """

    state_key = STATE

    def __init__(self, share: float) -> None:
        self.share = share
        self._mean: AveragedModel | None = None
        self._kept: dict[str, Any] = {}
        self._step = 0  # the last one that was looked at: of several batches a step, one counts

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Begin, or go on from a checkpoint."""
        self._mean = AveragedModel(pl_module.model, avg_fn=_running_mean, use_buffers=True)
        kept, self._kept = self._kept, {}
        if kept:
            self._mean.load_state_dict(kept)

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """See where the steps go on."""
        self._step = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *args: Any) -> None:
        """Take in the weights, if this was one of the last steps."""
        assert self._mean is not None
        before, self._step = self._step, trainer.global_step
        steps = int(trainer.estimated_stepping_batches)
        if before < self._step > steps - max(1, round(self.share * steps)):
            self._mean.update_parameters(pl_module.model)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Hand over the mean; of a fit that was finished before, too."""
        mean, self._mean = self._mean, None
        if mean is not None and mean.n_averaged:
            pl_module.model.load_state_dict(mean.module.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: nothing before the last steps."""
        if self._mean is None or not self._mean.n_averaged:
            return {}
        return dict(self._mean.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what a checkpoint keeps."""
        self._kept = state_dict


def key_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Return a key model's weights by name: their mean, where the checkpoint of a run has one."""
    mean = checkpoint.get("callbacks", {}).get(STATE)
    state, prefix = (mean, OF_MEAN) if mean else (checkpoint["state_dict"], OF_MODULE)
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def _running_mean(mean: Tensor, value: Tensor, count: Tensor | int) -> Tensor:
    # torch's own takes several tensors at once on a GPU, and fails there for BatchNorm's counters.
    return mean + (value - mean) / (count + 1)
