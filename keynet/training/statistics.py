"""BatchNorm whose batch is that of all ranks, on CPUs and GPUs alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from keynet.training.ranks import gathered, ranks


class BatchStatistics(TorchFunctionMode):
    """A context in which BatchNorm in training mode takes its statistics over all ranks.

    ``torch.nn.SyncBatchNorm`` is of GPUs alone, and would take the place of layers that fuse an
    activation, as timm's do; here no module changes, and so no checkpoint does.

    Args:
        update: Whether the running statistics take them in; false where a forward is repeated.
    """

    def __init__(self, *, update: bool = True) -> None:
        super().__init__()
        self.update = update

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if training and not self.update:  # a repeated forward must have as many tensors
            running_mean = None if running_mean is None else running_mean.clone()
            running_var = None if running_var is None else running_var.clone()
        if not training or ranks()[1] == 1:
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        wide = x.float()
        mean, var, count = _moments(wide)
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
                unbiased = var * count / (count - 1)
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        shape = (1, -1, *[1] * (x.ndim - 2))
        scale = torch.rsqrt(var + eps)
        if weight is not None:
            scale = scale * weight
        standard = (wide - mean.view(shape)) * scale.view(shape)
        return (standard if bias is None else standard + bias.view(shape)).to(x.dtype)


def _moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance [C] of x [B, C, ...] over all ranks, and their number of values.

    Source: Chan et al., Updating Formulae and a Pairwise Algorithm for Computing Sample Variances,
    1979: from the ranks' own moments, which does not cancel as a mean of squares does.
    """
    var, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
    count = torch.full_like(mean, x.numel() / x.shape[1])
    means, variances, counts = gathered(torch.stack([mean, var, count])[None]).unbind(1)
    weights = counts / counts.sum(0)  # [world, C]
    mean = (weights * means).sum(0)
    var = (weights * (variances + (means - mean).square())).sum(0)
    return mean, var, counts.sum(0)
