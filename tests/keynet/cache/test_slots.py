from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache.slots import WHOLE, Slots

BITS, DIM = 64, 3


def row(number: int) -> tuple[np.ndarray, np.ndarray]:
    """A code and a vector that say their number."""
    return np.full(BITS // 8, number % 251, np.uint8), np.full(DIM, number, np.float32)


def append(slots: Slots, *entries: int) -> int:
    slots.reserve(len(entries))
    codes, vectors = zip(*map(row, entries), strict=True)
    return slots.extend(np.array(entries), np.stack(codes), np.stack(vectors))


def content(slots: Slots) -> list[tuple[int, int, float]]:
    taken = slice(slots.count)
    columns = (slots.ids[taken], slots.codes[taken, 0], slots.vectors[taken, 0])
    return list(zip(*(column.tolist() for column in columns), strict=True))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("aaard"), st.integers(0, 10**6)), max_size=60))
def test_slots_are_a_list_in_which_the_last_fills_gaps(steps: list[tuple[str, int]]) -> None:
    slots, model, changes = Slots(BITS, DIM), [], 0
    for number, (what, pick) in enumerate(steps):
        at = pick % len(model) if model else None
        if what == "a":
            assert append(slots, number) == len(model)
            model.append((number, number, float(number)))
        elif at is not None and what == "r":
            slots.replace(at, *row(number))
            model[at] = (model[at][0], number, float(number))
            changes += 1
        elif at is not None:
            last = model.pop()
            moved = slots.remove(at)
            assert moved == (None if at == len(model) else last[0])
            if moved is not None:
                model[at] = last
            changes += 1
        assert content(slots) == model
        assert slots.changes == changes


def test_what_a_reader_knows_stays_while_slots_are_appended() -> None:
    slots = Slots(BITS, DIM)
    append(slots, *range(4))
    codes, count, changes = slots.codes, slots.count, slots.changes
    known = codes[:count].copy()
    append(slots, *range(100, 200))
    assert slots.codes is not codes and len(slots.codes) >= 104
    assert np.array_equal(codes[:count], known)
    assert slots.changes == changes


def test_removing_the_last_is_a_change_in_place() -> None:
    slots = Slots(BITS, DIM)
    append(slots, 1, 2)
    assert slots.remove(1) is None
    assert slots.changes == 1
    append(slots, 3)  # into the slot that a reader may still believe to be entry 2
    assert content(slots)[1] == (3, 3, 3.0)


def test_growth_copies_seldom_and_counts_what_was_written() -> None:
    slots, arrays = Slots(BITS, DIM), set()
    kept = []
    for number in range(30_000):
        append(slots, number)
        if id(slots.codes) not in arrays:
            arrays.add(id(slots.codes))
            kept.append(slots.codes)  # so that no other gets its id
    assert len(arrays) < 30
    assert slots.codes.nbytes > WHOLE
    assert slots.nbytes == 30_000 * (BITS // 8 + 2 * DIM + 8)
    for _ in range(29_999):
        slots.remove(0)
    assert slots.nbytes == 30_000 * (BITS // 8 + 2 * DIM + 8)  # touched memory stays


def test_the_first_entry_takes_the_memory_of_one() -> None:
    slots = Slots(BITS, DIM)
    assert slots.nbytes == 0
    append(slots, 1)
    arrays = slots.codes, slots.vectors, slots.ids
    assert slots.nbytes == sum(a.nbytes for a in arrays) == BITS // 8 + 2 * DIM + 8


def test_small_arrays_are_counted_whole() -> None:
    slots = Slots(BITS, DIM)
    append(slots, *range(10))
    append(slots, 10)
    assert len(slots.ids) > 11
    assert slots.nbytes == sum(a.nbytes for a in (slots.codes, slots.vectors, slots.ids))


def test_memory_that_is_not_there_changes_nothing() -> None:
    slots = Slots(BITS, DIM)
    append(slots, 1)
    arrays = slots.codes, slots.vectors, slots.ids
    with pytest.raises(MemoryError):
        slots.reserve(2**50)
    assert (slots.codes, slots.vectors, slots.ids) == arrays or all(
        a is b for a, b in zip((slots.codes, slots.vectors, slots.ids), arrays, strict=True)
    )
    assert content(slots) == [(1, 1, 1.0)]


@pytest.mark.parametrize("dim", [64, 256, 768])
def test_half_precision_costs_a_cosine_little(dim: int) -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((2000, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    near = vectors + 0.02 * random.standard_normal(vectors.shape).astype(np.float32)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    slots = Slots(BITS, dim)
    slots.reserve(2000)
    slots.extend(np.arange(2000), np.zeros((2000, BITS // 8), np.uint8), vectors)
    kept = slots.vectors[:2000].astype(np.float64)
    kept /= np.linalg.norm(kept, axis=1, keepdims=True)
    for other in (near, np.roll(vectors, 1, axis=0)):
        exact = np.einsum("nd,nd->n", vectors.astype(np.float64), other)
        error = np.abs(np.einsum("nd,nd->n", kept, other) - exact)
        assert error.max() < 1.5e-4
        assert error.mean() < 3e-5
