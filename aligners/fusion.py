"""Fusion of two aligned modalities into one key."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ALPHA = 0.6  # SPEC K4; where a learned one starts


def alignment_strength(image: Tensor, text: Tensor) -> Tensor:
    """Return the cosine of two aligned modalities [B], 0 where one is absent.

    Args:
        image: [B, D], unit norm or zero.
        text: [B, D], unit norm or zero.
    """
    return (image * text).sum(-1)


def present(modality: Tensor) -> Tensor:
    """Return bool [B, 1], false where the row of an aligned modality [B, D] is zero."""
    return (modality != 0).any(-1, keepdim=True)


class WeightedSum(nn.Module):
    """The weighted sum alpha * image + (1 - alpha) * text alone: an ablation.

    It cannot forget the colour for one question and the shape for another.

    Source: SPEC K1 (by alignment) and K4 (one alpha).

    Args:
        key_dim: Width D of the aligned vectors and of the key.
        alpha: The image's weight in [0, 1], "learned" as one number for all requests, or by each
            request's "alignment": sigmoid(scale * cosine + offset).

    Raises:
        ValueError: ``alpha`` is none of these.
    """

    def __init__(
        self, *, key_dim: int, alpha: float | Literal["learned", "alignment"] = "alignment"
    ) -> None:
        super().__init__()
        self.key_dim = key_dim
        self.alpha = alpha
        if alpha == "alignment":
            self.scale = nn.Parameter(torch.zeros(()))
            self.offset = nn.Parameter(torch.zeros(()))
        elif alpha == "learned":
            self.alpha_logit = nn.Parameter(torch.tensor(math.log(ALPHA / (1 - ALPHA))))
        elif type(alpha) not in (int, float) or not 0 <= alpha <= 1:  # a bool is an int, too
            raise ValueError(
                f'fusion.alpha={alpha!r}: expected a number in [0, 1], "learned" or "alignment"; '
                f"SPEC K4 has {ALPHA}"
            )

    def weight(self, image: Tensor, text: Tensor) -> Tensor:
        """Return the image's weight [B, 1]."""
        if self.alpha == "alignment":
            # Not 1 or 0 where one is absent: models are trained and stored with it so.
            strength = alignment_strength(image, text)
            return torch.sigmoid(self.scale * strength + self.offset).unsqueeze(-1)
        alpha = torch.sigmoid(self.alpha_logit) if self.alpha == "learned" else self.alpha
        # One modality alone counts in full: alpha 0 must not make a picture's key zero.
        with_image = torch.where(present(text), alpha, 1.0)
        return torch.where(present(image), with_image, 0.0)

    def weighted(self, image: Tensor, text: Tensor) -> Tensor:
        """Return weight * image + (1 - weight) * text [B, D]."""
        weight = self.weight(image, text)
        return weight * image + (1 - weight) * text

    def forward(self, image: Tensor, text: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return the key [B, D], unit norm; with one modality, that modality.

        Args:
            image: [B, D], unit norm, or zero where absent.
            text: [B, D], unit norm, or zero where absent.
            tokens: The image's tokens [B, T, C]; not looked at.
        """
        return F.normalize(self.weighted(image, text), dim=-1)


class ResidualMLP(WeightedSum):
    """The weighted sum, corrected by an MLP over it, both modalities and their product.

    The sum carries what makes a picture and a question themselves, also where they are like nothing
    trained on; the MLP forgets what the question does not ask. The product lets a question select
    directions of the picture in one layer.

    Args:
        key_dim: Width D of the aligned vectors and of the key.
        hidden_dim: Width of the hidden layer.
        alpha: As in ``WeightedSum``.
    """

    def __init__(
        self,
        *,
        key_dim: int,
        hidden_dim: int,
        alpha: float | Literal["learned", "alignment"] = "alignment",
    ) -> None:
        super().__init__(key_dim=key_dim, alpha=alpha)
        self.mlp = nn.Sequential(
            nn.Linear(4 * key_dim, hidden_dim),
            nn.GELU(),
            nn.LayerNorm(hidden_dim),
            nn.Linear(hidden_dim, key_dim),
        )

    def forward(self, image: Tensor, text: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return the key [B, D], unit norm.

        Args:
            image: [B, D], unit norm, or zero where absent.
            text: [B, D], unit norm, or zero where absent.
            tokens: The image's tokens [B, T, C]; not looked at.
        """
        root = self.key_dim**0.5  # entries of order one into the first layer
        parts = [self.weighted(image, text), image, text, root * image * text]
        return F.normalize(root * parts[0] + self.mlp(root * torch.cat(parts, dim=-1)), dim=-1)
