"""Hash head: a key to code logits whose signs are the code."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keynet.types import CODE_BITS


class HashHead(nn.Module):
    """A random rotation, which is not trained, and BatchNorm before the sign.

    What learns is the key: losses of codes reach it through the rotation. A trained map has large
    and small directions, so that its bits tell a distance with more noise; signs of orthogonal
    projections tell it with the least. BatchNorm balances the bits. More bits than the key is wide
    take a further rotation.

    Source: Ji et al., Super-Bit Locality-Sensitive Hashing, NeurIPS 2012; Hoe et al., One Loss for
    All (OrthoHash), NeurIPS 2021, for BatchNorm before the sign.

    Args:
        key_dim: Width D of the key.
        bits: Code bits K.
    """

    def __init__(self, *, key_dim: int, bits: int) -> None:
        super().__init__()
        if bits not in CODE_BITS:
            raise ValueError(f"bits={bits}: expected one of {CODE_BITS}")
        self.key_dim, self.bits = key_dim, bits
        self.linear = nn.Linear(key_dim, bits, bias=False).requires_grad_(False)
        for first in range(0, bits, key_dim):
            nn.init.orthogonal_(self.linear.weight[first : first + key_dim])
        self.norm = nn.BatchNorm1d(bits, affine=False)

    def folded(self) -> tuple[Tensor, Tensor]:
        """Return W [K, D] and b [K] with the running statistics folded in."""
        assert self.norm.running_mean is not None and self.norm.running_var is not None
        scale = torch.rsqrt(self.norm.running_var + self.norm.eps)
        return self.linear.weight * scale.unsqueeze(1), -self.norm.running_mean * scale

    def forward(self, key: Tensor) -> Tensor:
        """Return logits [B, K]; in evaluation mode they do not depend on the batch."""
        if self.training:
            logits: Tensor = self.norm(self.linear(key))
            return logits
        return F.linear(key, *self.folded())
