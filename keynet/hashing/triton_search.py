"""Hamming search on a GPU: block by block the least distance, then the blocks that matter.

The codes are read once, and of each block of codes and each query only the least distance is kept.
The k nearest codes lie in the k blocks whose least is least, a block of equal least counting after
the blocks before it: k - 1 other blocks hold a nearer code each, so that no other block can hold
one of the k. These few blocks are searched again, in the order of their codes, which is the order
that ties need. No step depends on chance or on what was found before, and a block without a near
code costs its least distance alone.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from keynet.hashing.triton_finish import RUN, finish
from keynet.hashing.triton_launch import processors, running_on
from keynet.hashing.triton_minima import matrix_minima, popcount_minima

BLOCK_WORDS = 2048  # of the codes of a block: 64 registers of each thread of a warp
PROGRAMS = 16  # a multiprocessor: as many warps of that size as its registers hold
MATRIX_QUERIES = 32  # a tile of 64 takes the instructions of counting for about 20
TILE_QUERIES, TILE_CODES, MATRIX_WARPS, MATRIX_PROGRAMS = 64, 128, 4, 3
SELECT_TILE, SELECT_WARPS, RANK_TILE = 2048, 16, 64
ALIGNMENT = 16  # what Triton asks of a length to read 16 bytes a thread; and of a run
MOST_CODES = (1 << 31) - (1 << 16)  # rows are int32, those of empty blocks too
PASS_QUERIES, PASS_CANDIDATES = 256, 1 << 26  # bound the memory that a search takes


def search(
    queries: Tensor,
    codes: Tensor,
    k: int,
    radius: int,
    query_scopes: Tensor | None,
    code_scopes: Tensor | None,
    matrix: bool,
) -> tuple[Tensor, Tensor]:
    """Return distances and indices of the k nearest; see ``reference``.

    Args:
        matrix: By products of int8 matrices, not by counting bits; the results are the same.
    """
    if len(codes) > MOST_CODES:
        raise ValueError(f"{len(codes)} codes: a search takes {MOST_CODES}; search in parts")
    device = codes.device
    distance = torch.empty((len(queries), k), dtype=torch.int32, device=device)
    index = torch.empty((len(queries), k), dtype=torch.int64, device=device)
    blocks = num_blocks(codes)
    room = min(k, blocks) * block_codes(codes)
    step = max(1, min(PASS_QUERIES, PASS_CANDIDATES // room))
    with running_on(device):
        for first in range(0, len(queries), step):
            part = slice(first, first + step)
            asked = queries[part].contiguous()
            of_query = None if query_scopes is None else query_scopes[part].contiguous()
            of_code = None if code_scopes is None else code_scopes.contiguous()
            minima = block_minima(asked, codes, of_query, of_code, blocks, matrix)
            _finish(asked, codes, of_query, of_code, minima, radius, distance[part], index[part])
    return distance, index


def block_codes(codes: Tensor) -> int:
    """Return how many codes a block has."""
    return BLOCK_WORDS // codes.shape[1]


def num_blocks(codes: Tensor) -> int:
    """Return how many blocks there are, empty ones at the end included."""
    whole = -(-codes.shape[0] // block_codes(codes))
    return max(ALIGNMENT, rounded_up(whole))


def rounded_up(number: int) -> int:
    """Return the next multiple of 16."""
    return -(-number // ALIGNMENT) * ALIGNMENT


def readable_rows(codes: Tensor) -> int:
    """Return how many rows may be read: N, or up to 15 more where their storage goes on."""
    wanted = rounded_up(codes.shape[0])
    (code_stride, word_stride), width = codes.stride(), codes.shape[1]
    end = codes.storage_offset() + (width - 1) * word_stride + wanted * code_stride
    held = codes.untyped_storage().nbytes() // codes.element_size()
    return wanted if code_stride == 1 and end <= held else codes.shape[0]


def block_minima(
    queries: Tensor,
    codes: Tensor,
    query_scopes: Tensor | None,
    code_scopes: Tensor | None,
    blocks: int,
    matrix: bool,
) -> Tensor:
    """Return the least distance of each query to each block of codes, int16 [Q, blocks]."""
    minima = torch.empty((len(queries), blocks), dtype=torch.int16, device=codes.device)
    given = (
        queries, codes, query_scopes, code_scopes, minima,
        len(queries), len(codes), readable_rows(codes), blocks, *codes.stride(),
        codes.shape[1], block_codes(codes), code_scopes is not None,
    )  # fmt: skip
    cores = processors(codes.device)
    if matrix:
        grid = (min(blocks, cores * MATRIX_PROGRAMS), triton.cdiv(len(queries), TILE_QUERIES))
        matrix_minima[grid](*given, TILE_QUERIES, TILE_CODES, num_warps=MATRIX_WARPS)
    else:
        popcount_minima[(min(blocks, cores * PROGRAMS),)](*given, num_warps=1)
    return minima


def _finish(
    queries: Tensor,
    codes: Tensor,
    query_scopes: Tensor | None,
    code_scopes: Tensor | None,
    minima: Tensor,
    radius: int,
    distance: Tensor,
    index: Tensor,
) -> None:
    """Write distances [Q, k] and indices [Q, k] of the nearest."""
    (num_queries, blocks), k, block = minima.shape, distance.shape[1], block_codes(codes)
    runs, room = blocks // RUN.value, min(k, blocks)
    work = (
        (runs, torch.int16), (min(k, runs), torch.int32), (room, torch.int32),
        (room * block, torch.int16), (k, torch.int32),
    )  # fmt: skip
    finish[(num_queries,)](
        queries, codes, query_scopes, code_scopes, minima,
        *(torch.empty((num_queries, n), dtype=t, device=codes.device) for n, t in work),
        distance, index, len(codes), blocks, k, radius, *codes.stride(),
        codes.shape[1], block, code_scopes is not None, SELECT_TILE, RANK_TILE,
        num_warps=SELECT_WARPS,
    )  # fmt: skip
