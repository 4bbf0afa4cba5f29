"""Kernels that read a store of codes once: the least distance of each query to each block."""

from __future__ import annotations

import triton
import triton.language as tl

HIDDEN = tl.constexpr(1 << 14)  # over any distance; with one added, still an int16


@triton.jit
def count_ones(x: tl.tensor) -> tl.tensor:
    """Return how many bits of uint32 are set; compiled to one instruction, and known everywhere."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def add_bits(a: tl.tensor, b: tl.tensor, c: tl.tensor) -> tl.tensor:
    """Return sum and carry of three bits, in each place of the words."""
    return a ^ b ^ c, (a & b) | (c & (a ^ b))


@triton.jit
def distance_to(words: tl.tensor, query: tl.tensor, W: tl.constexpr) -> tl.tensor:
    """Return the Hamming distances of codes, words of one place each, to the query at a pointer.

    Counting bits runs at a quarter of the speed of logic: eight words are first added to four.
    A count is at most 32; told so, the compiler does not fold the doubling into the count before it
    has seen that it is one.
    """
    differ = tl.tuple(())
    for w in tl.static_range(W):
        differ += ((words[w] ^ tl.load(query + w)).to(tl.uint32, bitcast=True),)
    total = tl.zeros(words[0].shape, tl.int32)
    if W < 8:
        for w in tl.static_range(W):
            total += count_ones(differ[w])
    else:
        for w in tl.static_range(0, W, 8):
            one, two = add_bits(differ[w], differ[w + 1], differ[w + 2])
            other, more = add_bits(differ[w + 3], differ[w + 4], differ[w + 5])
            one, most = add_bits(one, other, differ[w + 6])
            two, four = add_bits(two, more, most)
            total += count_ones(one) + count_ones(differ[w + 7])
            total += 2 * tl.minimum(count_ones(two), 32) + 4 * tl.minimum(count_ones(four), 32)
    return total


@triton.jit
def load_words(
    codes: tl.tensor,
    row: tl.tensor,
    inside: tl.tensor,
    code_stride: tl.tensor,
    word_stride: tl.tensor,
    W: tl.constexpr,
) -> tl.tensor:
    """Return the words of some rows, a tensor for each place."""
    words = tl.tuple(())
    start = codes + row.to(tl.int64) * code_stride
    for w in tl.static_range(W):
        step = tl.full((), w, tl.int64) * word_stride
        words += (tl.load(start + step, mask=inside, other=0),)
    return words


@triton.jit(do_not_specialize=["num_queries", "num_codes"])
def popcount_minima(
    queries: tl.tensor,
    codes: tl.tensor,
    query_scopes: tl.tensor,
    code_scopes: tl.tensor,
    minima: tl.tensor,
    num_queries: tl.tensor,
    num_codes: tl.tensor,
    readable: tl.tensor,
    num_blocks: tl.tensor,
    code_stride: tl.tensor,
    word_stride: tl.tensor,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    SCOPED: tl.constexpr,
) -> None:
    """Write the least distance of each query to each block of codes, by counting bits.

    One warp a program: its least needs neither shared memory nor a barrier.

    Args:
        queries: int32 [Q, W], words side by side.
        codes: int32 [N, W] of any strides; fast where ``code_stride`` is 1.
        query_scopes: int32 [Q]; not read unless SCOPED.
        code_scopes: int32 [N]; not read unless SCOPED.
        minima: int16 [Q, num_blocks], out.
        num_queries: Q.
        num_codes: N.
        readable: Rows that may be read, N or more: a multiple of 16 is read 16 bytes a thread.
        num_blocks: Blocks, those of no codes at the end included.
        code_stride: From code to code.
        word_stride: From word to word of a code.
    """
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        row = block * BLOCK + tl.arange(0, BLOCK)
        words = load_words(codes, row, row < readable, code_stride, word_stride, W)
        away = tl.where(row < num_codes, 0, HIDDEN)
        if SCOPED:
            scopes = tl.load(code_scopes + row, mask=row < num_codes, other=0)
        for query in range(num_queries):
            found = away + distance_to(words, queries + query * W, W)
            if SCOPED:
                found = tl.where(scopes == tl.load(query_scopes + query), found, HIDDEN)
            place = minima + tl.cast(query, tl.int64) * num_blocks + block
            tl.store(place, tl.min(found, 0).to(tl.int16))


@triton.jit(do_not_specialize=["num_queries", "num_codes"])
def matrix_minima(
    queries: tl.tensor,
    codes: tl.tensor,
    query_scopes: tl.tensor,
    code_scopes: tl.tensor,
    minima: tl.tensor,
    num_queries: tl.tensor,
    num_codes: tl.tensor,
    readable: tl.tensor,
    num_blocks: tl.tensor,
    code_stride: tl.tensor,
    word_stride: tl.tensor,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    SCOPED: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_N: tl.constexpr,
) -> None:
    """Write what ``popcount_minima`` writes, by products of int8 matrices.

    The distance of bits q and c is the sum of q + c - 2qc: the ones of q, and the product of c
    with 1 - 2q. So the codes are expanded to 0 and 1, and only the queries to 1 and -1. Bits come
    in the order 0, 8, 16, 24, 1, 9, ...: four that one mask takes out of a word lie in it as the
    bytes that the matrix units want.

    Args: as ``popcount_minima``; the programs are [blocks in turn, tiles of queries].
    """
    query = tl.program_id(1) * TILE_Q + tl.arange(0, TILE_Q)
    asking = query < num_queries
    word, shift, byte = tl.arange(0, W), tl.arange(0, 8), 8 * tl.arange(0, 4)
    asked = tl.load(
        queries + query[:, None] * W + word[None, :], mask=asking[:, None], other=0
    )  # [TILE_Q, W]
    ones = tl.sum(count_ones(asked.to(tl.uint32, bitcast=True)), 1)
    flat = (asked[:, :, None] >> shift[None, None, :]) & 0x01010101
    signs = 1 - 2 * ((flat[:, :, :, None] >> byte[None, None, None, :]) & 1)  # [TILE_Q, W, 8, 4]
    signs = tl.reshape(signs.to(tl.int8), (TILE_Q, 32 * W))
    if SCOPED:
        wanted = tl.load(query_scopes + query, mask=asking, other=0)
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        least = tl.full((TILE_Q,), HIDDEN, tl.int32)
        for first in range(0, BLOCK, TILE_N):
            row = block * BLOCK + first + tl.arange(0, TILE_N)
            start = codes + row[None, :].to(tl.int64) * code_stride
            step = word[:, None].to(tl.int64) * word_stride
            packed = tl.load(start + step, mask=(row < readable)[None, :], other=0)  # [W, TILE_N]
            spread = (packed[:, None, :] >> shift[None, :, None]) & 0x01010101  # [W, 8, TILE_N]
            bits = (spread[:, :, None, :] >> byte[None, None, :, None]).to(tl.int8)
            bits = tl.reshape(bits, (32 * W, TILE_N))  # from [W, 8, 4, TILE_N]
            found = tl.zeros((TILE_Q, TILE_N), tl.int32)
            found += tl.dot(signs, bits, out_dtype=tl.int32)
            if block * BLOCK + first + TILE_N > num_codes:
                found += tl.where(row < num_codes, 0, HIDDEN)[None, :]
            if SCOPED:
                scopes = tl.load(code_scopes + row, mask=row < num_codes, other=0)
                found = tl.where(scopes[None, :] == wanted[:, None], found, HIDDEN)
            least = tl.minimum(least, tl.min(found, 1))
        place = minima + query.to(tl.int64) * num_blocks + block
        tl.store(place, (ones + least).to(tl.int16), mask=asking)
