"""Codes from keys, and cosines of keys with their candidates, on a GPU: one kernel each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from keynet.hashing.triton_launch import running_on

# Bits a program: few give one key many programs, more read each key less often.
FEW_KEYS, FEW_BITS, MANY_BITS = 64, 16, 64
HASH_TILE, HASH_DEPTH, HASH_WARPS = 16, 64, 4  # keys a program, columns a step
RERANK_TILE, RERANK_DEPTH, RERANK_WARPS = 32, 128, 4
LEAST_NORM = tl.constexpr(1e-12)  # as in torch.nn.functional.normalize


@triton.jit(do_not_specialize=["num_keys"])
def hash_keys_kernel(
    keys: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    codes: tl.tensor,
    norms: tl.tensor,
    num_keys: tl.tensor,
    D: tl.constexpr,
    K: tl.constexpr,
    TILE_B: tl.constexpr,
    TILE_K: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """Write the codes of keys and their norms.

    The programs are [tiles of keys, tiles of bits]; each takes the norms of its keys on the way.

    Args:
        keys: [B, D], rows side by side, float32 or half precision.
        weight: float32 [K, D].
        bias: float32 [K].
        codes: uint8 [B, K/8], out.
        norms: float32 [B], out.
        num_keys: B.
    """
    row = tl.program_id(0) * TILE_B + tl.arange(0, TILE_B)
    bit = tl.program_id(1) * TILE_K + tl.arange(0, TILE_K)
    there = row < num_keys
    row = row.to(tl.int64)
    products = tl.zeros((TILE_B, TILE_K), tl.float32)
    squares = tl.zeros((TILE_B,), tl.float32)
    for first in range(0, D, DEPTH):
        column = first + tl.arange(0, DEPTH)
        inside = column < D
        key = tl.load(
            keys + row[:, None] * D + column[None, :],
            mask=there[:, None] & inside[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        weights = tl.load(
            weight + bit[None, :] * D + column[:, None], mask=inside[:, None], other=0.0
        )
        products += tl.dot(key, weights, input_precision="ieee")
        squares += tl.sum(key * key, 1)
    norm = tl.sqrt(squares)
    logits = products / norm[:, None] + tl.load(bias + bit)[None, :]
    bits = tl.reshape((logits >= 0).to(tl.int32), (TILE_B, TILE_K // 8, 8))
    packed = tl.sum(bits << (7 - tl.arange(0, 8))[None, None, :], 2).to(tl.uint8)
    byte = tl.program_id(1) * (TILE_K // 8) + tl.arange(0, TILE_K // 8)
    tl.store(codes + row[:, None] * (K // 8) + byte[None, :], packed, mask=there[:, None])
    if tl.program_id(1) == 0:
        tl.store(norms + row, norm, mask=there)


def hash_keys(keys: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and norms; see ``reference``."""
    (num_keys, dim), bits = keys.shape, weight.shape[0]
    codes = torch.empty((num_keys, bits // 8), dtype=torch.uint8, device=keys.device)
    norms = torch.empty(num_keys, dtype=torch.float32, device=keys.device)
    if num_keys:
        tile_bits = FEW_BITS if num_keys <= FEW_KEYS else MANY_BITS
        grid = (triton.cdiv(num_keys, HASH_TILE), bits // tile_bits)
        with running_on(keys.device):
            hash_keys_kernel[grid](
                keys.contiguous(), weight.contiguous(), bias.contiguous(), codes, norms,
                num_keys, dim, bits, HASH_TILE, tile_bits, HASH_DEPTH, num_warps=HASH_WARPS,
            )  # fmt: skip
    return codes, norms


@triton.jit(do_not_specialize=["num_candidates"])
def cosine_rerank_kernel(
    queries: tl.tensor,
    vectors: tl.tensor,
    candidates: tl.tensor,
    cosines: tl.tensor,
    num_candidates: tl.tensor,
    D: tl.constexpr,
    TILE: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """Write the cosines of queries with the vectors of their candidates.

    The programs are [queries, tiles of candidates].

    Args:
        queries: [Q, D], rows side by side, float32 or half precision.
        vectors: [N, D], likewise.
        candidates: int64 [Q, C], rows of ``vectors``, or -1.
        cosines: float32 [Q, C], out.
        num_candidates: C.
    """
    query = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = place < num_candidates
    candidate = tl.load(candidates + query * num_candidates + place, mask=inside, other=-1)
    there = candidate >= 0
    # By column, and added up at the end: adding up takes turns between threads.
    products = tl.zeros((TILE, DEPTH), tl.float32)
    lengths = tl.zeros((TILE, DEPTH), tl.float32)
    length = tl.zeros((DEPTH,), tl.float32)
    for first in range(0, D, DEPTH):
        column = first + tl.arange(0, DEPTH)
        wanted = tl.load(queries + query * D + column, mask=column < D, other=0.0).to(tl.float32)
        found = tl.load(
            vectors + candidate[:, None] * D + column[None, :],
            mask=there[:, None] & (column < D)[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        products += found * wanted[None, :]
        lengths += found * found
        length += wanted * wanted
    whole = tl.maximum(tl.sqrt(tl.sum(length, 0)), LEAST_NORM)
    cosine = tl.sum(products, 1) / whole / tl.maximum(tl.sqrt(tl.sum(lengths, 1)), LEAST_NORM)
    cosine = tl.where(there, cosine, float("-inf"))
    tl.store(cosines + query * num_candidates + place, cosine, mask=inside)


def cosine_rerank(queries: Tensor, vectors: Tensor, candidates: Tensor) -> Tensor:
    """Return cosines; see ``reference``."""
    num_queries, num_candidates = candidates.shape
    cosines = torch.empty((num_queries, num_candidates), dtype=torch.float32, device=queries.device)
    if cosines.numel():
        grid = (num_queries, triton.cdiv(num_candidates, RERANK_TILE))
        with running_on(queries.device):
            cosine_rerank_kernel[grid](
                queries.contiguous(), vectors.contiguous(), candidates.contiguous(), cosines,
                num_candidates, queries.shape[1], RERANK_TILE, RERANK_DEPTH,
                num_warps=RERANK_WARPS,
            )  # fmt: skip
    return cosines
