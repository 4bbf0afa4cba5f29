"""Fusion of two aligned modalities into one key."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def alignment_strength(image: Tensor, text: Tensor) -> Tensor:
    """Return the cosine of two aligned modalities [B], 0 where one is absent.

    Args:
        image: [B, D], unit norm or zero.
        text: [B, D], unit norm or zero.
    """
    return (image * text).sum(-1)


class WeightedSum(nn.Module):
    """The alignment-weighted sum of K1 alone: an ablation.

    It cannot forget the colour for one question and the shape for another.

    Source: SPEC K1.
    """

    def __init__(self, *, key_dim: int) -> None:
        super().__init__()
        self.key_dim = key_dim
        self.scale = nn.Parameter(torch.zeros(()))
        self.offset = nn.Parameter(torch.zeros(()))

    def weighted(self, image: Tensor, text: Tensor) -> Tensor:
        """Return w * image + (1 - w) * text [B, D], w = sigmoid(scale * alignment + offset)."""
        weight = torch.sigmoid(self.scale * alignment_strength(image, text) + self.offset)
        weight = weight.unsqueeze(-1)
        return weight * image + (1 - weight) * text

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """Return the key [B, D], unit norm; with one modality, that modality.

        Args:
            image: [B, D], unit norm, or zero where absent.
            text: [B, D], unit norm, or zero where absent.
        """
        return F.normalize(self.weighted(image, text), dim=-1)


class ResidualMLP(WeightedSum):
    """The alignment-weighted sum, corrected by an MLP over it, both modalities and their product.

    The sum carries what makes a picture and a question themselves, also where they are like nothing
    trained on; the MLP forgets what the question does not ask. The product lets a question select
    directions of the picture in one layer.

    Args:
        key_dim: Width D of the aligned vectors and of the key.
        hidden_dim: Width of the hidden layer.
    """

    def __init__(self, *, key_dim: int, hidden_dim: int) -> None:
        super().__init__(key_dim=key_dim)
        self.mlp = nn.Sequential(
            nn.Linear(4 * key_dim, hidden_dim),
            nn.GELU(),
            nn.LayerNorm(hidden_dim),
            nn.Linear(hidden_dim, key_dim),
        )

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """Return the key [B, D], unit norm.

        Args:
            image: [B, D], unit norm, or zero where absent.
            text: [B, D], unit norm, or zero where absent.
        """
        root = self.key_dim**0.5  # entries of order one into the first layer
        parts = [self.weighted(image, text), image, text, root * image * text]
        return F.normalize(root * parts[0] + self.mlp(root * torch.cat(parts, dim=-1)), dim=-1)
