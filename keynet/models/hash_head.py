"""Hash head: a key to code logits whose signs are the code."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keynet.types import CODE_BITS


class HashHead(nn.Module):
    """Signs of a random rotation of the key; in training another one stands in for it.

    What learns is the key: losses of codes reach it through the rotation of training, and the key
    learns that one by heart, so that its signs tell other requests apart less than those of a
    rotation that no loss has seen. A trained map is worse still: it has large and small directions,
    so that its bits tell a distance with more noise than signs of orthogonal projections. Bits are
    balanced by BatchNorm in training, else by the running mean of keys. More bits than the key is
    wide take a further rotation.

    Source: Ji et al., Super-Bit Locality-Sensitive Hashing, NeurIPS 2012; Hoe et al., One Loss for
    All (OrthoHash), NeurIPS 2021, for BatchNorm before the sign.

    Args:
        key_dim: Width D of the key.
        bits: Code bits K.
    """

    rotation: Tensor
    mean: Tensor

    def __init__(self, *, key_dim: int, bits: int) -> None:
        super().__init__()
        if bits not in CODE_BITS:
            raise ValueError(f"bits={bits}: expected one of {CODE_BITS}")
        self.key_dim, self.bits = key_dim, bits
        self.linear = nn.Linear(key_dim, bits, bias=False).requires_grad_(False)
        self.register_buffer("rotation", torch.empty(bits, key_dim))
        made = torch.Generator().manual_seed(0)  # what is trained does not depend on it
        for first in range(0, bits, key_dim):
            nn.init.orthogonal_(self.linear.weight[first : first + key_dim])
            nn.init.orthogonal_(self.rotation[first : first + key_dim], generator=made)
        self.rotation *= key_dim**0.5  # logits of unit keys are about as large as standardised ones
        self.norm = nn.BatchNorm1d(bits, affine=False)
        self.register_buffer("mean", torch.zeros(key_dim))

    def folded(self) -> tuple[Tensor, Tensor]:
        """Return W [K, D] and b [K] of the code: the rotation, and the mean folded in."""
        return self.rotation, -self.rotation @ self.mean

    def taught(self) -> tuple[Tensor, Tensor]:
        """Return W [K, D] and b [K] of training, with the running statistics folded in."""
        assert self.norm.running_mean is not None and self.norm.running_var is not None
        scale = torch.rsqrt(self.norm.running_var + self.norm.eps)
        return self.linear.weight * scale.unsqueeze(1), -self.norm.running_mean * scale

    def forward(self, key: Tensor) -> Tensor:
        """Return logits [B, K]; in evaluation mode they do not depend on the batch."""
        if not self.training:
            return F.linear(key, *self.folded())
        assert self.norm.momentum is not None
        self.mean.lerp_(key.detach().float().mean(0), self.norm.momentum)
        logits: Tensor = self.norm(self.linear(key))
        return logits
