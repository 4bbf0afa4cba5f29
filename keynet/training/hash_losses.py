"""Losses of the joint semantic hash, beside the contrast of keys in ``losses``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keynet.training.losses import (
    TEMPERATURE,
    across_scopes,
    sign_straight_through,
    supervised_contrastive,
)
from keynet.types import KeyOutput, TrainingBatch


class HashCosine(nn.Module):
    """1 - cosine between logits and their signs: what a code loses of its logits.

    No gradient flows through the signs.

    Source: Hoe et al., OrthoHash, NeurIPS 2021, section 3; SPEC K7 (hash cosine).
    """

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> Tensor:
        """Return the loss of a batch, in [0, 1)."""
        signs = torch.where(output.logits >= 0, 1.0, -1.0).to(output.logits)
        return (1 - F.cosine_similarity(output.logits, signs, dim=-1)).mean()


class ResponseContrast(nn.Module):
    """Supervised contrast of whole +-1 codes over groups: codes of equivalent requests meet.

    ``losses.CodeContrast`` without its nested prefixes, which mean nothing where each modality has
    a half of the code to itself, and without its instances.

    Args:
        temperature: Divides the cosines of codes, 1 - 2 * Hamming share.

    Source: SPEC K7 (response); Khosla et al. as in ``losses.supervised_contrastive``.
    """

    def __init__(self, *, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"temperature={temperature}: expected more than 0")
        self.temperature = temperature

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> Tensor:
        """Return the loss of a batch."""
        unit = F.normalize(sign_straight_through(output.logits), dim=-1)
        return supervised_contrastive(unit, batch.group, self.temperature, across_scopes(batch))
