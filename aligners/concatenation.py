"""Fusion that keeps the modalities apart: the key is one block of each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Concatenation(nn.Module):
    """The aligned image, then the aligned text.

    Nothing is forgotten and nothing is mixed, so that a head can hash each modality on its own
    (``keynet.models.modality_hash_head``). The cosine of two keys with both modalities is the mean
    of the cosines of their images and of their texts.

    Args:
        key_dim: Width of the key, even: twice that of the aligned vectors.

    Source: SPEC K2 (b) and K7.
    """

    def __init__(self, *, key_dim: int) -> None:
        super().__init__()
        if key_dim < 2 or key_dim % 2:
            raise ValueError(
                f"key_dim={key_dim}: expected an even width, half for the image and half for the "
                "text"
            )
        self.key_dim = key_dim

    def forward(self, image: Tensor, text: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return the key [B, key_dim], unit norm: each block weighs sqrt(.5), one alone 1.

        Args:
            image: [B, key_dim / 2], unit norm, or zero where absent.
            text: [B, key_dim / 2], unit norm, or zero where absent.
            tokens: Not looked at.

        Raises:
            ValueError: When the aligned vectors are not half as wide as the key.
        """
        # A trace has checked what it was made of, and would warn of a width that it bakes in.
        if not torch.jit.is_tracing() and image.shape[-1] + text.shape[-1] != self.key_dim:
            raise ValueError(
                f"aligned vectors are {image.shape[-1]} and {text.shape[-1]} wide, expected "
                f"{self.key_dim // 2}, half of key_dim={self.key_dim}; set aligner.key_dim so"
            )
        return F.normalize(torch.cat([image, text], dim=-1), dim=-1)
