"""The kernel that finds the nearest codes in the blocks whose least distance is least."""

from __future__ import annotations

import triton
import triton.language as tl

from keynet.hashing.triton_minima import HIDDEN, distance_to, load_words

RUN = tl.constexpr(16)  # blocks; their number is a multiple of it


@triton.jit
def count_up_to(
    values: tl.tensor, length: tl.tensor, most: tl.tensor, TILE: tl.constexpr
) -> tl.tensor:
    """Return how many of the int16 values are at most ``most``."""
    total = tl.zeros((TILE,), tl.int32)
    for first in range(0, length, TILE):
        place = first + tl.arange(0, TILE)
        value = tl.load(values + place, mask=place < length, other=HIDDEN)
        total += (value <= most).to(tl.int32)
    return tl.sum(total, 0)


@triton.jit
def member(groups: tl.tensor, place: tl.tensor, mask: tl.tensor, SIZE: tl.constexpr) -> tl.tensor:
    """Return what stands at a place of the members of some groups, side by side."""
    return tl.load(groups + place // SIZE, mask=mask, other=0) * SIZE + place % SIZE


@triton.jit
def select_least(
    values: tl.tensor,
    length: tl.tensor,
    k: tl.tensor,
    limit: tl.tensor,
    places: tl.tensor,
    TILE: tl.constexpr,
) -> tl.tensor:
    """Write the places of the k least of the values, those of at most ``limit``, in their order.

    Of equal values the first are taken. Returns how many were, and the greatest value that is taken
    (``limit`` where fewer than k are).
    """
    low, high = tl.zeros((), tl.int32), limit
    below = tl.zeros((), tl.int32)  # values under `low`
    middle = tl.maximum(limit - 1, 0)  # the edge of one level is mostly that of the next
    while low < high:
        count = count_up_to(values, length, middle, TILE)
        if count >= k:
            high = middle
        else:
            low, below = middle + 1, count
        middle = (low + high) // 2
    equals = k - below  # of value `low` that are taken
    less, tied = tl.zeros((), tl.int32), tl.zeros((), tl.int32)  # seen so far
    for first in range(0, length, TILE):
        place = first + tl.arange(0, TILE)
        value = tl.load(values + place, mask=place < length, other=HIDDEN)
        # Two counts in one scan; neither passes TILE.
        one = tl.where(value < low, 1, tl.where(value == low, 1 << 16, 0))
        seen = tl.cumsum(one, 0)
        taken = (value < low) | ((value == low) & (tied + (seen >> 16) <= equals))
        slot = less + (seen & 0xFFFF) + tl.minimum(tied + (seen >> 16), equals) - 1
        tl.store(places + slot, place, mask=taken)
        whole = tl.sum(one, 0)
        less, tied = less + (whole & 0xFFFF), tied + (whole >> 16)
    return less + tl.minimum(tied, equals), low


@triton.jit(do_not_specialize=["num_codes", "k", "radius"])
def finish(
    queries: tl.tensor,
    codes: tl.tensor,
    query_scopes: tl.tensor,
    code_scopes: tl.tensor,
    minima: tl.tensor,
    run_minima: tl.tensor,
    runs: tl.tensor,
    blocks: tl.tensor,
    candidates: tl.tensor,
    kept: tl.tensor,
    distance: tl.tensor,
    index: tl.tensor,
    num_codes: tl.tensor,
    num_blocks: tl.tensor,
    k: tl.tensor,
    radius: tl.tensor,
    code_stride: tl.tensor,
    word_stride: tl.tensor,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    SCOPED: tl.constexpr,
    TILE: tl.constexpr,
    RANKED: tl.constexpr,
) -> None:
    """Write the k nearest codes of each query from the least distances of its blocks.

    One program a query. It looks for the runs of 16 blocks, then among them for the blocks, then
    among these for the codes that are least: selecting is slow, and so it is done on few.
    With R = min(k, num_blocks / 16) and S = min(k, num_blocks):

    Args:
        queries, codes, query_scopes, code_scopes, minima, strides: as ``popcount_minima``.
        run_minima: int16 [Q, num_blocks / 16], work: the least distance to each run.
        runs: int32 [Q, R], work: the runs that are searched.
        blocks: int32 [Q, S], work: the blocks that are.
        candidates: int16 [Q, S * BLOCK], work: distances.
        kept: int32 [Q, k], work: places of the least candidates.
        distance: int32 [Q, k], out.
        index: int64 [Q, k], out.
        num_codes: N.
        num_blocks: A multiple of 16.
        k: How many.
        radius: Greatest distance, at most 32 W.
    """
    query = tl.program_id(0).to(tl.int64)
    num_runs = num_blocks // RUN
    queries += query * W
    minima += query * num_blocks
    run_minima += query * num_runs
    runs += query * tl.minimum(k, num_runs)
    blocks += query * tl.minimum(k, num_blocks)
    candidates += query * tl.minimum(k, num_blocks) * BLOCK
    kept += query * k
    distance += query * k
    index += query * k

    for first in range(0, num_runs, TILE // RUN):
        run = first + tl.arange(0, TILE // RUN)
        values = tl.load(
            minima + run[:, None] * RUN + tl.arange(0, RUN)[None, :],
            mask=(run < num_runs)[:, None], other=HIDDEN,
        )  # fmt: skip
        tl.store(run_minima + run, tl.min(values, 1), mask=run < num_runs)
    tl.debug_barrier()  # here and below: what one thread wrote, another reads
    found, edge = select_least(run_minima, num_runs, k, radius, runs, TILE)
    tl.debug_barrier()
    for first in range(0, found * RUN, TILE):
        place = first + tl.arange(0, TILE)
        inside = place < found * RUN
        value = tl.load(minima + member(runs, place, inside, RUN), mask=inside)
        tl.store(candidates + place, value, mask=inside)
    tl.debug_barrier()
    found, edge = select_least(candidates, found * RUN, k, edge, kept, TILE)
    tl.debug_barrier()
    for first in range(0, found, TILE):
        slot = first + tl.arange(0, TILE)
        place = tl.load(kept + slot, mask=slot < found, other=0)
        tl.store(blocks + slot, member(runs, place, slot < found, RUN), mask=slot < found)
    tl.debug_barrier()
    for first in range(0, found * BLOCK, TILE):
        place = first + tl.arange(0, TILE)
        inside = place < found * BLOCK
        row = member(blocks, place, inside, BLOCK)
        there = inside & (row < num_codes)
        if SCOPED:
            scopes = tl.load(code_scopes + row, mask=there, other=0)
            there &= scopes == tl.load(query_scopes + query)
        words = load_words(codes, row, there, code_stride, word_stride, W)
        value = tl.where(there, distance_to(words, queries, W), HIDDEN)
        tl.store(candidates + place, value.to(tl.int16), mask=inside)
    tl.debug_barrier()
    found, edge = select_least(candidates, found * BLOCK, k, edge, kept, TILE)
    tl.debug_barrier()
    for first in range(0, found, RANKED):
        mine = first + tl.arange(0, RANKED)
        place = tl.load(kept + mine, mask=mine < found, other=0)
        value = tl.load(candidates + place, mask=mine < found, other=HIDDEN)
        rank = tl.zeros((RANKED,), tl.int32)
        for second in range(0, found, RANKED):
            others = second + tl.arange(0, RANKED)
            where = tl.load(kept + others, mask=others < found, other=0)
            beside = tl.load(candidates + where, mask=others < found, other=HIDDEN)[None, :]
            earlier = (beside == value[:, None]) & (others[None, :] < mine[:, None])
            rank += tl.sum(((beside < value[:, None]) | earlier).to(tl.int32), 1)
        row = member(blocks, place, mine < found, BLOCK)
        tl.store(distance + rank, value.to(tl.int32), mask=mine < found)
        tl.store(index + rank, row.to(tl.int64), mask=mine < found)
    for first in range(0, k, TILE):
        place = first + tl.arange(0, TILE)
        empty = (place >= found) & (place < k)
        tl.store(distance + place, 32 * W + 1, mask=empty)
        tl.store(index + place, -1, mask=empty)
