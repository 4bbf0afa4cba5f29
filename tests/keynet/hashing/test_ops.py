from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from keynet.hashing import cosine_rerank, cpu, hamming_search, hash_keys, ops, reference, words
from keynet.hashing.ops import backend
from keynet.types import CODE_BITS


def codes_of(seed: int, count: int, bits: int) -> Tensor:
    """Words of few distinct codes, so that ties are many."""
    generator = np.random.default_rng(seed)
    few = generator.integers(0, 256, (max(1, count // 3), bits // 8), dtype=np.uint8)
    return words(torch.from_numpy(few[generator.integers(0, len(few), count)]))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    bits=st.sampled_from(CODE_BITS),
    count=st.integers(0, 70),
    asked=st.integers(0, 5),
    k=st.integers(1, 90),
    radius=st.integers(0, 600),
    scoped=st.booleans(),
    word_major=st.booleans(),
    numpy_alone=st.booleans(),
)
def test_the_search_is_its_definition(
    seed: int,
    bits: int,
    count: int,
    asked: int,
    k: int,
    radius: int,
    scoped: bool,
    word_major: bool,
    numpy_alone: bool,
) -> None:
    codes, queries = codes_of(seed, count, bits), codes_of(seed, asked, bits)
    if word_major:
        codes = codes.T.contiguous().T
    scopes = ()
    if scoped:
        generator = torch.Generator().manual_seed(seed)
        scopes = tuple(
            torch.randint(0, 3, (n,), generator=generator, dtype=torch.int32)
            for n in (asked, count)
        )
    with pytest.MonkeyPatch.context() as patch:
        if numpy_alone:
            patch.setattr(cpu, "faiss", lambda: None)
            patch.setattr(cpu, "CHUNK", 16)
        found = hamming_search(queries, codes, k, radius, *scopes)
    wanted = reference.hamming_search(queries, codes, k, min(radius, bits), *scopes)
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


def test_distances_are_those_of_numpy() -> None:
    codes = codes_of(1, 50, 128)
    unpacked = np.unpackbits(codes.numpy().view(np.uint8), axis=1)
    wanted = (unpacked[:, None] != unpacked[None]).sum(2)
    assert np.array_equal(reference.distances(codes, codes).numpy(), wanted)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    bits=st.sampled_from(CODE_BITS),
    dim=st.integers(1, 70),
    count=st.integers(0, 9),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_codes_are_the_signs_of_the_logits(
    seed: int, bits: int, dim: int, count: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(count, dim, generator=generator).to(dtype) * 3
    weight, bias = (torch.randn(*s, generator=generator) for s in ((bits, dim), (bits,)))
    logits = torch.nn.functional.normalize(keys.double()) @ weight.double().T + bias
    found = hash_keys(keys, weight, bias).numpy()
    wanted = np.packbits((logits >= 0).numpy(), axis=1)
    flipped = np.unpackbits(found ^ wanted, axis=1).astype(bool)
    assert found.shape == (count, bits // 8)
    assert not flipped[(logits.abs() >= 1e-4).numpy()].any()
    assert torch.equal(
        reference.pack_bits(logits >= 0), torch.from_numpy(wanted)
    )  # most significant bit first


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf"), 1e30])
def test_a_key_without_a_direction_is_an_error(bad: float) -> None:
    keys = torch.ones(3, 8)
    keys[1] = bad
    with pytest.raises(ValueError, match=r"key 1 has norm .*; a key that is zero or not finite"):
        hash_keys(keys, torch.ones(64, 8), torch.zeros(64))


KEYS, WEIGHT, BIAS = torch.ones(2, 8), torch.ones(64, 8), torch.zeros(64)
CODES = torch.zeros(5, 2, dtype=torch.int32)
SCOPES = torch.zeros(5, dtype=torch.int32)
NONE = torch.full((2, 3), -1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: words(CODES), r"codes are int32 \[5, 2\]; expected uint8 \[N, K/8\]"),
        (lambda: hash_keys(KEYS[0], WEIGHT, BIAS), r"keys are float32 \[8\]; expected"),
        (lambda: hash_keys(KEYS.double(), WEIGHT, BIAS), "keys are float64"),
        (lambda: hash_keys(KEYS, WEIGHT[:, :4], BIAS), r"expected \[K, 8\] and \[K\]"),
        (lambda: hash_keys(KEYS, WEIGHT[:63], BIAS[:63]), "K one of"),
        (lambda: hash_keys(KEYS, WEIGHT.half(), BIAS), "expected float32 and K"),
        (lambda: hamming_search(CODES.long(), CODES, 1), "queries are int64"),
        (lambda: hamming_search(CODES, CODES[:, :1], 1), r"codes are int32 \[5, 1\]; expected"),
        (lambda: hamming_search(CODES, torch.zeros(5, 4).int(), 1), "different widths"),
        (lambda: hamming_search(CODES, CODES, 0), "k=0: expected an int, 1 to 4096"),
        (lambda: hamming_search(CODES, CODES, 10**9), "k=1000000000: expected an int, 1 to"),
        (lambda: hamming_search(CODES, CODES, True), "k=True: expected an int"),
        (lambda: hamming_search(CODES, CODES, 2.0), "k=2.0: expected an int"),
        (lambda: hamming_search(CODES, CODES, np.int64(2)), r"k=np.int64\(2\): expected an int"),
        (lambda: hamming_search(CODES.to("meta"), CODES, 1), "queries are on meta, codes on cpu"),
        (lambda: hash_keys(KEYS.to("meta"), WEIGHT, BIAS), "keys are on meta, weight on cpu"),
        (lambda: cosine_rerank(KEYS.double(), WEIGHT.double(), NONE), "queries are float64"),
        (lambda: cosine_rerank(KEYS, WEIGHT, NONE + 65), "candidate 64: expected a row of 64"),
        (lambda: cosine_rerank(KEYS, WEIGHT, NONE - 1), "candidate -2: expected a row of 64"),
        (lambda: cosine_rerank(KEYS, WEIGHT, NONE.to("meta")), "are on cpu, cpu and meta"),
        (lambda: hamming_search(CODES, CODES, 1, -1), "radius=-1: expected an int, 0 to 64"),
        (lambda: hamming_search(CODES, CODES, 1, float("nan")), "radius=nan: expected an int"),
        (lambda: hamming_search(CODES, CODES, 1, None, SCOPES), "give both or neither"),
        (
            lambda: hamming_search(CODES, CODES, 1, None, SCOPES, SCOPES[:2]),
            r"code_scopes are int32 \[2\]; expected int32 \[5\]",
        ),
        (
            lambda: hamming_search(CODES, CODES, 1, None, SCOPES, SCOPES.to("meta")),
            "code_scopes are on meta, codes on cpu; move either",
        ),
        (lambda: cosine_rerank(KEYS, WEIGHT[:, :4], SCOPES.long()), r"expected \[Q, D\] and \[N"),
        (lambda: cosine_rerank(KEYS, WEIGHT, SCOPES), r"candidates are int32 \[5\]; expected"),
    ],
)
def test_what_does_not_fit_is_said(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


ODD = [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float64]


@pytest.mark.parametrize("dtype", [*ODD, torch.float16, torch.complex64, torch.float8_e4m3fn])
def test_another_type_is_one_line(dtype: torch.dtype) -> None:
    scalar = torch.zeros((), dtype=dtype)
    calls: list[Any] = [lambda: words(scalar), lambda: cosine_rerank(scalar, KEYS, NONE)]
    calls += [lambda: hash_keys(scalar, WEIGHT, BIAS), lambda: hash_keys(KEYS, scalar, BIAS)]
    calls += [lambda: hash_keys(KEYS, WEIGHT, scalar), lambda: hamming_search(scalar, CODES, 1)]
    calls += [lambda: hamming_search(CODES, CODES, 1, None, scalar, SCOPES)]
    calls += [lambda: hash_keys(KEYS, WEIGHT.to(dtype), BIAS)]
    if dtype != torch.float16:
        calls += [lambda: hash_keys(KEYS.to(dtype), WEIGHT, BIAS)]
        calls += [lambda: cosine_rerank(KEYS, KEYS.to(dtype), NONE)]
    if dtype != torch.uint8:
        calls += [lambda: words(torch.zeros(5, 8).to(dtype))]
    if dtype != torch.int32:
        calls += [lambda: hamming_search(CODES, CODES.to(dtype), 1)]
        calls += [lambda: hamming_search(CODES, CODES, 1, None, SCOPES.to(dtype), SCOPES)]
    if dtype != torch.int64:
        calls += [lambda: cosine_rerank(KEYS, KEYS, NONE.to(dtype))]
    for call in calls:
        with pytest.raises(ValueError, match="expected") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_tensors_that_do_not_lie_side_by_side() -> None:
    made = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (50 * 16 + 1,), generator=made, dtype=torch.uint8)
    wide = raw[1:].view(50, 16)  # words that begin where memory has none
    assert torch.equal(words(wide), words(wide.clone()))
    every = words(wide[:, ::2])
    assert torch.equal(every, words(wide[:, ::2].clone()))
    keys, weight = (torch.randn(n, 16, generator=made)[:, ::2] for n in (3, 64))
    assert torch.equal(hash_keys(keys, weight, BIAS), hash_keys(keys.clone(), weight.clone(), BIAS))
    for queries, codes in ((every[:3].flip(0), every[::2]), (every[:1].expand(4, 2), every)):
        found = hamming_search(queries, codes, 3)
        wanted = hamming_search(queries.clone(), codes.clone(), 3)
        assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1])


def test_an_empty_store_has_no_candidates_to_rank() -> None:
    _, index = hamming_search(CODES[:2], CODES[:0], 3)
    assert (cosine_rerank(KEYS, KEYS[:0], index) == -torch.inf).all()


def test_cosines_of_candidates() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, vectors = (torch.randn(n, 16, generator=generator) for n in (3, 9))
    candidates = torch.tensor([[0, 8, -1], [3, 3, 1], [-1, -1, 5]])
    found = cosine_rerank(queries, vectors, candidates)
    for q, c in np.ndindex(3, 3):
        place = int(candidates[q, c])
        wanted = torch.cosine_similarity(queries[q], vectors[place], dim=0)
        assert found[q, c] == (-torch.inf if place < 0 else pytest.approx(float(wanted), abs=1e-6))


class Lookup(torch.nn.Module):
    def forward(self, keys: Tensor, codes: Tensor, vectors: Tensor) -> tuple[Tensor, ...]:
        mine, norms = torch.ops.keynet.hash_keys(keys, WEIGHT + torch.eye(64, 8), BIAS)
        found = torch.ops.keynet.hamming_search(mine.view(torch.int32), codes, 2, 64)
        return norms, *found, torch.ops.keynet.cosine_rerank(keys, vectors, found[1])


def test_the_ops_pass_through_export_and_compile_at_any_batch() -> None:
    def given(batch: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(batch)
        return torch.randn(batch, 8, generator=generator), codes_of(1, 9, 64), torch.randn(9, 8)

    shapes = ({0: torch.export.Dim("batch")}, None, None)
    exported = torch.export.export(Lookup(), given(3), dynamic_shapes=shapes).module()
    compiled = torch.compile(Lookup(), backend="aot_eager", fullgraph=True, dynamic=True)
    for batch in (3, 5):
        sample = given(batch)
        wanted = Lookup()(*sample)
        for found in (exported(*sample), compiled(*sample)):
            assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("hash_keys", (KEYS, WEIGHT, BIAS)),
        ("hamming_search", (CODES, CODES, 2, 64, SCOPES, SCOPES)),
        ("cosine_rerank", (KEYS, WEIGHT, NONE)),
    ],
)
def test_what_torch_asks_of_an_op(op: str, given: tuple[Any, ...]) -> None:
    torch.library.opcheck(getattr(torch.ops.keynet, op).default, given)


def test_what_runs_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    backend.cache_clear()
    monkeypatch.setenv(ops.VARIABLE, "reference")
    assert backend("cpu") is reference
    backend.cache_clear()
    monkeypatch.setenv(ops.VARIABLE, "fastest")
    with pytest.raises(ValueError, match="KEYNET_HASHING=fastest: expected one of reference"):
        backend("cpu")
    backend.cache_clear()
    monkeypatch.delenv(ops.VARIABLE)
    assert backend("cpu") is cpu
    assert backend("mps") is reference


def test_without_triton_plain_torch_serves_a_gpu_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend.cache_clear()
    for name in [name for name in sys.modules if name.startswith("keynet.hashing.triton")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert backend("cuda") is reference
    assert "triton is not installed" in caplog.text
    backend.cache_clear()
