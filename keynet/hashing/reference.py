"""What the hashing ops compute, in plain torch: their definition, and what they are tested against.

Shapes: B keys of width D, K bits, W = K/32 words; Q queries, N codes, C candidates a query.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ABSENT = -1  # index of a place in a result that no code takes


def pack_bits(bits: Tensor) -> Tensor:
    """Return bool [B, K] as codes uint8 [B, K/8], most significant bit first."""
    weights = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=bits.device)
    grouped = bits.reshape(len(bits), bits.shape[1] // 8, 8).to(torch.uint8)  # [B, K/8, 8]
    return (grouped * weights).sum(2, dtype=torch.uint8)


def hash_keys(keys: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes uint8 [B, K/8] of ``W (x / |x|) + b >= 0``, and the norms float32 [B]."""
    rows = keys.float()
    norms = rows.norm(dim=1)
    logits = F.linear(rows, weight) / norms[:, None] + bias
    return pack_bits(logits >= 0), norms


def distances(queries: Tensor, codes: Tensor) -> Tensor:
    """Return the Hamming distances int32 [Q, N] of int32 words [Q, W] and [N, W]."""
    differing = queries[:, None] ^ codes[None]  # [Q, N, W]
    shifts = torch.arange(32, dtype=torch.int32, device=codes.device)
    return ((differing[..., None] >> shifts) & 1).sum((2, 3), dtype=torch.int32)


def hamming_search(
    queries: Tensor,
    codes: Tensor,
    k: int,
    radius: int,
    query_scopes: Tensor | None = None,
    code_scopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the k nearest: distances int32 [Q, k] and indices int64 [Q, k].

    Ordered by distance, then by index. Codes further than ``radius``, or of another scope than the
    query's, are not there; places that no code takes have index -1 and distance K + 1.
    """
    absent = 32 * codes.shape[1] + 1
    found = distances(queries, codes)
    hidden = found > radius
    if query_scopes is not None and code_scopes is not None:
        hidden |= query_scopes[:, None] != code_scopes[None]
    found = found.masked_fill(hidden, absent)
    found = F.pad(found, (0, max(0, k - found.shape[1])), value=absent)
    nearest, index = found.sort(dim=1, stable=True)
    nearest, index = nearest[:, :k].contiguous(), index[:, :k].contiguous()
    return nearest, index.masked_fill(nearest == absent, ABSENT)


def cosine_rerank(queries: Tensor, vectors: Tensor, candidates: Tensor) -> Tensor:
    """Return the cosines float32 [Q, C] of queries [Q, D] with vectors [N, D] at int64 [Q, C].

    -inf where a candidate is -1.
    """
    if len(vectors) == 0:  # no row stands in for a candidate that is -1
        return torch.full(candidates.shape, -torch.inf, device=candidates.device)
    found = F.normalize(vectors[candidates.clamp(min=0)].float(), dim=-1)  # [Q, C, D]
    cosines = torch.einsum("qd,qcd->qc", F.normalize(queries.float(), dim=-1), found)
    return cosines.masked_fill(candidates < 0, -torch.inf)
