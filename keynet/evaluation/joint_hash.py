"""The joint hash over stored embeddings: a linear head for pictures and one for texts (K7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from aligners.concatenation import Concatenation
from keynet.evaluation.hash_baselines import LinearHash, fit_linear
from keynet.types import KeyOutput, TrainingBatch

MODALITIES = ("image", "text")


class JointHash(nn.Module):
    """Two linear heads with BatchNorm, each half of the code.

    The key that the losses see is the unit logits of both, side by side.

    Args:
        image: Training embeddings of pictures [N, Di]; embeddings are centred and scaled by theirs.
        text: Training embeddings of texts [N, Dt].
        bits: Of the whole code.
        seed: Of the weights.
    """

    def __init__(self, image: Tensor, text: Tensor, *, bits: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        given = {"image": image, "text": text}
        self.mean = {name: rows.mean(0) for name, rows in given.items()}
        self.spread = {name: (rows - self.mean[name]).std() for name, rows in given.items()}
        self.heads = nn.ModuleDict(
            {name: LinearHash(rows.shape[1], bits // 2, generator) for name, rows in given.items()}
        )
        self.fusion = Concatenation(key_dim=bits)
        self.blocks = {"image": (0, bits // 2), "text": (bits // 2, bits)}

    def forward(self, image: Tensor, text: Tensor) -> KeyOutput:
        """Return what losses read, of embeddings [B, Di] and [B, Dt] of the same requests."""
        given = {"image": image, "text": text}
        halves = [
            self.heads[name]((given[name] - self.mean[name]) / self.spread[name])
            for name in MODALITIES
        ]
        first, second = (F.normalize(half, dim=1) for half in halves)
        return KeyOutput(
            key=self.fusion(first, second),
            image=first,
            text=second,
            logits=torch.cat(halves, dim=1),
            alignment=(first * second).sum(1),
        )

    @torch.no_grad()
    def logits(self, image: Tensor, text: Tensor) -> NDArray[np.float32]:
        """Return logits [N, bits]; the first half is the image's."""
        found: NDArray[np.float32] = self(image, text).logits.numpy()
        return found


def fit_joint_hash(
    image: Tensor,
    text: Tensor,
    group: Tensor,
    *,
    bits: int,
    seed: int,
    batches: Sequence[Tensor],
    losses: Mapping[str, Mapping[str, Any]],
    learning_rate: float,
) -> JointHash:
    """Return both heads, trained together; in evaluation mode.

    Args:
        image: Embeddings [N, Di].
        text: Embeddings [N, Dt] of the same requests.
        group: int64 [N]; equal = equivalent.
        bits: Of the whole code.
        seed: Of the weights.
        batches: Numbers of the rows of each step. Ones that hold equivalents: in random ones of
            hundreds of groups, contrast has few positives.
        losses: By name, weight and loss, as of ``keynet.training.module.KeyModule``.
        learning_rate: Of ``fit_linear``.
    """
    head = JointHash(image, text, bits=bits, seed=seed)

    def loss(at: Tensor) -> Tensor:
        output, batch = head(image[at], text[at]), labelled(group[at])
        return torch.stack([e["weight"] * e["loss"](output, batch) for e in losses.values()]).sum()

    fit_linear(head, loss, batches, learning_rate)
    return head


def labelled(group: Tensor) -> TrainingBatch:
    """Return a batch of one scope of which nothing but the groups [B] is known."""
    none, unknown = torch.zeros(0), torch.full_like(group, -1)
    rows, true = torch.arange(len(group)), torch.ones_like(group, dtype=torch.bool)
    return TrainingBatch(
        images=none,
        image_mask=true,
        tokens=none,
        token_mask=none,
        image_index=rows,
        text_index=rows,
        group=group,
        entity=unknown,
        original=unknown,
        intent=unknown,
        picture_id=unknown,
        text_id=unknown,
        described=~true,
        scope=torch.zeros_like(group),
    )
