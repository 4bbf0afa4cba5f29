"""GradNorm: loss weights under which losses pull alike at shared parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

BELOW_ZERO = 0.01  # 1 - cosine of bf16 vectors may round this far below zero


class GradNorm(nn.Module):
    """Weights [N] of N losses, positive with sum N, all 1 at first.

    A loss whose weighted gradient G_i is longer than mean(G) * r_i ** alpha loses weight, a shorter
    one gains; r_i = (L_i / first L_i) / mean is large where a loss lags. A fixed factor before a
    loss has no lasting effect: it is evened out too.

    In a training step::

        weights = self.gradnorm(losses, [self.model.aligner.projections["text"].weight])
        return (weights * torch.stack([losses[name] for name in self.gradnorm.names])).sum()

    A loss is left out of a step and keeps its weight where it has no gradient at the shared
    parameters, as where its rows are missing in a batch, or is not above zero, where it has nothing
    left to learn.

    Cost: one more backward per loss, from the loss down to the shared parameters. Choose the last
    layer that the losses share. In a distributed run gradients are averaged over ranks before
    their norms are taken, so that all have the same weights.

    Args:
        names: Of the losses, in the order of the weights.
        alpha: Asymmetry: 0 asks for equal gradients, more pulls harder at losses that lag.
        learning_rate: Of the weights.

    Raises:
        ValueError: On no or repeated names, a negative alpha or a learning rate not above zero.

    Source: Chen et al., GradNorm, ICML 2018, eq. 1-2 and algorithm 1; SPEC T6 (alpha = 0.3). We
    differ in the step on the L1 loss: over mean(G), so that it does not depend on the losses'
    common scale, and on the logarithms of the weights, which keeps them positive.
    """

    weights: Tensor
    first: Tensor

    def __init__(
        self, *, names: Sequence[str], alpha: float = 0.3, learning_rate: float = 0.025
    ) -> None:
        super().__init__()
        if not names or len(set(names)) < len(names):
            raise ValueError(f"names={list(names)}: expected at least one, each once")
        if not alpha >= 0:
            raise ValueError(f"alpha={alpha}: expected 0 or more")
        if not learning_rate > 0:
            raise ValueError(f"learning_rate={learning_rate}: expected more than 0")
        self.names = tuple(names)
        self.alpha, self.learning_rate = alpha, learning_rate
        self.register_buffer("weights", torch.ones(len(names)))
        self.register_buffer("first", torch.zeros(len(names)))  # 0: not seen yet

    def forward(self, losses: Mapping[str, Tensor], shared: Sequence[nn.Parameter]) -> Tensor:
        """Return the weights [N] for this step, without gradient; in training, update the next.

        The graph of the losses is kept for the backward of their weighted sum.

        Args:
            losses: By name, scalars, all of ``names``.
            shared: Parameters at which gradients are compared; frozen ones do not count.

        Raises:
            ValueError: If names differ, a loss is negative, or nothing shared is trained.
            FloatingPointError: If a loss or its gradient is not finite; nothing is updated.
        """
        if set(losses) != set(self.names):
            raise ValueError(f"losses {sorted(losses)}: expected {sorted(self.names)}")
        weights = self.weights.clone()
        if len(self.names) > 1 and self.training:
            values = torch.stack([losses[name].detach().float() for name in self.names])
            norms = self._norms([losses[name] for name in self.names], shared)
            self._check(values, norms)
            self._update(values, norms)
        return weights

    def _norms(self, losses: Sequence[Tensor], shared: Sequence[nn.Parameter]) -> Tensor:
        """Return the norm of each unweighted loss's gradient [N], 0 where it has none."""
        trained = [parameter for parameter in shared if parameter.requires_grad]
        if not trained:
            raise ValueError(
                f"{len(shared)} shared parameters, none trained: give those of a layer that all "
                "losses pass and that is not frozen"
            )
        norms = []
        for loss in losses:
            norm = torch.zeros((), device=self.weights.device)
            if loss.requires_grad:
                found = torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
                parts = [_over_ranks(g.float()).norm() for g in found if g is not None]
                norm = torch.stack(parts).norm() if parts else norm
            norms.append(norm)
        return torch.stack(norms)

    def _check(self, values: Tensor, norms: Tensor) -> None:
        for name, value, norm in zip(self.names, values.tolist(), norms.tolist(), strict=True):
            if not (math.isfinite(value) and math.isfinite(norm)):
                raise FloatingPointError(
                    f"loss {name} is {value}, its gradient's norm {norm}; "
                    "lower the learning rate or look at the data"
                )
            if value < -BELOW_ZERO:
                raise ValueError(
                    f"loss {name} is {value}: GradNorm compares losses with their first values and "
                    "expects them above zero; add a constant to it"
                )

    @torch.no_grad()
    def _update(self, values: Tensor, norms: Tensor) -> None:
        active = (norms > 0) & (values > 0)
        self.first.copy_(torch.where(active & (self.first == 0), values, self.first))
        if active.sum() < 2:
            return
        before = self.weights[active]
        norm = before * norms[active]
        rate = values[active] / self.first[active]
        target = norm.mean() * (rate / rate.mean()) ** self.alpha
        # d|G_i - target_i| / d log w_i = sign * G_i, as G_i is linear in w_i; targets are constant
        slope = torch.sign(norm - target) * norm / norm.mean()
        after = before * torch.exp(-self.learning_rate * slope)
        self.weights[active] = after * before.sum() / after.sum()


def _over_ranks(gradient: Tensor) -> Tensor:
    if not (dist.is_available() and dist.is_initialized()):
        return gradient
    total = gradient.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total / dist.get_world_size()
