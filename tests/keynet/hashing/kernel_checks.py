"""The Triton kernels against their definition: python kernel_checks.py CHECK, interpreted.

A process of its own, since Triton decides on import whether it interprets. On a GPU the tests call
the same functions with "cuda".
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from keynet.hashing import ops, reference, triton_kernels, triton_search
from keynet.types import CODE_BITS

EXAMPLES = {"keys": 25, "search": 16, "rerank": 20}  # each takes up to seconds, interpreted
POISON = 0x5B
LAYOUTS = ("by code", "by word", "padded", "every second")


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill what torch.empty returns."""
    empty = torch.empty

    def filled(*args: object, **options: object) -> Tensor:
        made = empty(*args, **options)
        made.view(-1).view(torch.uint8).fill_(POISON)
        return made

    torch.empty = filled
    try:
        yield
    finally:
        torch.empty = empty


def checked(name: str) -> settings:
    return settings(max_examples=EXAMPLES[name], deadline=None, database=None, derandomize=True)


def keys(device: str) -> None:
    """Codes flip no bit far from zero, and norms agree, whatever the shape and type."""
    types = st.sampled_from((torch.float32, torch.bfloat16, torch.float16))
    counts = {"bits": 0, "flipped": 0}

    @checked("keys")
    @given(st.integers(0, 70), st.integers(1, 130), st.sampled_from(CODE_BITS), types, st.data())
    @example(65, 96, 256, torch.float32, None)
    @example(1, 512, 512, torch.bfloat16, None)
    def check(rows: int, dim: int, bits: int, dtype: torch.dtype, data: st.DataObject) -> None:
        made = torch.Generator().manual_seed(rows + dim)
        x = torch.randn(rows, dim, generator=made).to(dtype).to(device)
        weight = torch.randn(bits, dim, generator=made).to(device)
        bias = torch.randn(bits, generator=made).to(device)
        with poisoned():
            codes, norms = triton_kernels.hash_keys(x, weight, bias)
        expected, wanted = reference.hash_keys(x, weight, bias)
        assert codes.dtype == torch.uint8 and codes.shape == expected.shape
        torch.testing.assert_close(norms, wanted, rtol=1e-5, atol=0)
        exact = (x.double() @ weight.double().T) / x.double().norm(dim=1, keepdim=True) + bias
        flipped = unpacked(codes) != (exact >= 0)
        assert not (flipped & (exact.abs() >= 1e-4)).any()
        counts["bits"] += flipped.numel()
        counts["flipped"] += int(flipped.sum())

    check()
    assert counts["bits"] > 100_000 and counts["flipped"] <= 1e-5 * counts["bits"], counts
    x = torch.zeros(2, 8, device=device)
    x[1] = 1
    _, norms = triton_kernels.hash_keys(x, torch.ones(64, 8, device=device), x.new_zeros(64))
    assert norms[0] == 0 and norms[1] > 2
    # What suits a device passes through the op, and what it refuses is refused.
    assert ops.backend(torch.device(device).type) is triton_kernels
    try:
        ops.hash_keys(x, torch.ones(64, 8, device=device), x.new_zeros(64))
    except ValueError as error:
        assert "key 0 has norm 0.0" in str(error)
    else:
        raise AssertionError("a zero key was hashed")


def unpacked(codes: Tensor) -> Tensor:
    """Return codes uint8 [B, K/8] as bool [B, K]."""
    shift = torch.arange(7, -1, -1, device=codes.device, dtype=torch.uint8)
    return ((codes[:, :, None] >> shift) & 1).flatten(1).bool()


def search(device: str) -> None:
    """Both ways of search return exactly what the definition does."""
    sizes = st.one_of(st.integers(0, 40), st.integers(0, 1100))

    @checked("search")
    @given(
        st.sampled_from(CODE_BITS), sizes, st.integers(0, 4),
        st.one_of(st.integers(1, 12), st.sampled_from((150, 1024))),
        st.one_of(st.just(1.0), st.floats(0, 1)), st.booleans(), st.integers(0, 3),
        st.sampled_from((1, 3, 10**9)),
    )  # fmt: skip
    @example(512, 6000, 1, 300, 1.0, True, 2, 10**9)  # ranks and candidates of several tiles
    @example(512, 300, 2, 1, 1.0, False, 2, 10**9)  # nearer ones lie beyond the last code
    @example(256, 700, 1, 1024, 1.0, False, 3, 1)  # ties alone
    def check(
        bits: int, size: int, asking: int, k: int, reach: float, scoped: bool, layout: int,
        distinct: int,
    ) -> None:  # fmt: skip
        made = torch.Generator().manual_seed(size + k)
        patterns = torch.randint(
            -(2**31), 2**31, (min(distinct, size + 1), bits // 32), generator=made
        )
        drawn = torch.randint(0, len(patterns), (size + asking,), generator=made)
        rows = patterns.to(torch.int32)[drawn]
        rows[::3, 0] ^= 5
        beyond = rows[-1] if len(rows) else patterns[0].int()
        codes = moved(laid_out(rows[:size], LAYOUTS[layout], beyond), device)
        queries = rows[size:].to(device)
        scopes = torch.randint(0, 3, (size + asking,), generator=made, dtype=torch.int32).to(device)
        given_scopes = (scopes[size:], scopes[:size]) if scoped else (None, None)
        radius = int(reach * bits)
        wanted = reference.hamming_search(queries, codes, k, radius, *given_scopes)
        for matrix in (False, True):
            with poisoned():
                found = triton_search.search(queries, codes, k, radius, *given_scopes, matrix)
            for mine, right in zip(found, wanted, strict=True):
                assert mine.dtype == right.dtype and torch.equal(mine, right), (matrix, mine, right)

    check()
    # Queries of several passes, and of several tiles of a product.
    whole = triton_search.PASS_QUERIES, triton_search.TILE_QUERIES
    triton_search.PASS_QUERIES, triton_search.TILE_QUERIES = 34, 16
    try:
        queries, codes = random_words(36, 2).to(device), random_words(99, 2).to(device)
        found = ops.hamming_search(queries, codes, 4)
        wanted = reference.hamming_search(queries, codes, 4, 64)
        assert all(map(torch.equal, found, wanted))
    finally:
        triton_search.PASS_QUERIES, triton_search.TILE_QUERIES = whole


def random_words(rows: int, columns: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, (rows, columns), dtype=torch.int32)


def laid_out(rows: Tensor, layout: str, beyond: Tensor) -> Tensor:
    """Return the same codes in another place and order; what is beyond them is not to be found."""
    if layout == "by word":
        return rows.T.contiguous().T
    if layout == "padded":
        capacity = beyond[:, None].repeat(1, 16 * (len(rows) // 16) + 32)
        capacity[:, : len(rows)] = rows.T
        return capacity[:, : len(rows)].T
    return rows.repeat_interleave(2, 0)[::2] if layout == "every second" else rows


def rerank(device: str) -> None:
    """Cosines agree, whatever the shape and type; absent candidates give -inf."""
    types = st.sampled_from((torch.float32, torch.bfloat16, torch.float16))

    @checked("rerank")
    @given(st.integers(0, 4), st.integers(0, 70), st.integers(1, 300), types, types)
    def check(
        asking: int, some: int, dim: int, of_queries: torch.dtype, of_vectors: torch.dtype
    ) -> None:
        made = torch.Generator().manual_seed(asking + some + dim)
        queries = 3 * torch.randn(asking, dim, generator=made).to(of_queries).to(device)
        vectors = torch.randn(50, dim, generator=made).to(of_vectors).to(device)
        vectors[7] = 0
        candidates = torch.randint(-1, 50, (asking, some), generator=made).to(device)
        with poisoned():
            found = triton_kernels.cosine_rerank(queries, vectors, candidates)
        wanted = reference.cosine_rerank(queries, vectors, candidates)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)

    check()


def moved(codes: Tensor, device: str) -> Tensor:
    """Return codes on a device, with the storage that they are a part of."""
    storage = torch.empty(0, dtype=codes.dtype).set_(codes.untyped_storage()).to(device)
    return storage.as_strided(codes.shape, codes.stride(), codes.storage_offset())


CHECKS = {"keys": keys, "search": search, "rerank": rerank}

if __name__ == "__main__":
    CHECKS[sys.argv[1]]("cpu")
