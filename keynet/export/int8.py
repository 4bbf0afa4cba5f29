"""Weights of a key model as int8: three tenths of the file, for slightly other keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

LAYERS = (nn.Linear, nn.Conv2d, nn.Embedding)
LEVELS = 127


class _Scaled(nn.Module):
    """int8 rows times their scales."""

    def forward(self, rounded: Tensor, scale: Tensor) -> Tensor:
        return rounded.float() * scale

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        greatest = weight.abs().amax(tuple(range(1, weight.dim())), keepdim=True)
        scale = greatest.clamp_min(torch.finfo(torch.float32).tiny) / LEVELS
        return (weight / scale).round().to(torch.int8), scale


def round_weights(model: nn.Module) -> None:
    """Round the weights of linear layers, convolutions and embeddings, in place.

    One scale for each row, or output channel, and symmetric: 127 is the greatest weight in it. The
    graph keeps int8 and multiplies; a loader that folds constants computes as before.

    Args:
        model: In float32, without gradients.
    """
    for layer in list(model.modules()):
        if isinstance(layer, LAYERS) and layer.weight.dtype == torch.float32:
            layer.weight.requires_grad_(False)  # int8 has none
            parametrize.register_parametrization(layer, "weight", _Scaled(), unsafe=True)
