"""Budgets beside a policy that keeps account of what it is told."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache.entry import CacheError
from keynet.cache.eviction import Eviction
from keynet.cache.policies.lru import LRU
from keynet.cache.policies.policy import Stored

BUDGET = st.one_of(st.none(), st.integers(1, 8))
STEPS = st.lists(
    st.tuples(st.sampled_from(["insert"] * 3 + ["hit", "remove", "fail"]), st.integers(0, 9)),
    max_size=40,
)


class Told(LRU):
    """LRU that refuses to be told of what it does not hold, and remembers the sizes."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.capacity, self.sizes = capacity, dict[int, int]()
        self.hits, self.coming = list[tuple[int, float]](), list[tuple[int, int]]()

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        super().on_hit(entry)
        self.hits.append((entry, similarity))

    def on_miss(self, incoming: Stored) -> None:
        self.coming.append((incoming.entry, incoming.size))

    def on_insert(self, stored: Stored) -> None:
        assert stored.entry not in self.sizes
        super().on_insert(stored)
        self.sizes[stored.entry] = stored.size

    def on_remove(self, entry: int) -> None:
        super().on_remove(entry)
        del self.sizes[entry]

    def victim(self) -> int:
        entry = super().victim()
        del self.sizes[entry]
        return entry


def within(held: dict[int, int], entries: int | None, nbytes: int | None) -> bool:
    return (entries is None or len(held) <= entries) and (
        nbytes is None or sum(held.values()) <= nbytes
    )


@settings(max_examples=200)
@given(BUDGET, BUDGET, STEPS)
def test_budgets_hold_and_no_more_goes_than_must(
    entries: int | None, nbytes: int | None, steps: list[tuple[str, int]]
) -> None:
    policies: list[Told] = []

    def make(capacity: int) -> Told:
        policies.append(Told(capacity))
        return policies[-1]

    eviction = Eviction(make, entries, nbytes)
    policy = policies[0] if policies else None
    assert (policy is None) is (entries is None and nbytes is None)
    if policy is not None:
        assert policy.capacity == (entries if nbytes is None else nbytes)
    held: dict[int, int] = {}
    for number, (what, pick) in enumerate(steps):
        one = sorted(held)[pick % len(held)] if held and pick < 8 else -1  # -1 was never there
        stored = Stored(number, number, size=1)
        if what == "hit":
            assert eviction.hit(one, 0.5) is (one in held)
            if policy is not None and one in held:
                assert policy.hits[-1] == (one, 0.5)
        elif what == "remove":
            eviction.remove(one)
            held.pop(one, None)
        elif not eviction.fits(pick):
            assert nbytes is not None and pick > nbytes
        else:
            assert nbytes is None or pick <= nbytes
            before = dict(held)
            gone = eviction.make_room(stored, pick)
            assert len(set(gone)) == len(gone) and all(held.pop(old) is not None for old in gone)
            assert within({**held, number: pick}, entries, nbytes)
            if gone:  # with the last of them it would not have fitted
                kept = {**held, gone[-1]: before[gone[-1]], number: pick}
                assert not within(kept, entries, nbytes)
            size = 1 if nbytes is None else pick
            if policy is not None:
                assert policy.coming[-1] == (number, size)
            if what == "fail":  # what had gone for it comes back
                for old in gone:
                    eviction.insert(Stored(old, old), before[old])
                held = before
            else:
                eviction.insert(stored, pick)
                held[number] = pick
        assert len(eviction) == len(held) and eviction.nbytes == sum(held.values())
        if policy is not None:
            assert policy.sizes == (held if nbytes is not None else dict.fromkeys(held, 1))


def test_the_policy_is_told_of_hits_on_what_is_held_alone() -> None:
    eviction = Eviction(Told, 2, None)
    for number in (0, 1):
        assert eviction.make_room(Stored(number, number), 1) == []
        eviction.insert(Stored(number, number), 1)
    assert eviction.hit(0, 1.0) and not eviction.hit(7, 1.0)
    assert eviction.make_room(Stored(2, 2), 1) == [1]
    assert not eviction.hit(1, 1.0)
    eviction.remove(1)  # gone already
    assert len(eviction) == 1


def test_without_a_budget_no_policy_is_made() -> None:
    def make(capacity: int) -> Any:
        raise AssertionError(capacity)

    eviction = Eviction(make, None, None)
    assert eviction.make_room(Stored(0, 0), 10**12) == [] and eviction.fits(10**12)
    eviction.insert(Stored(0, 0), 10**12)
    assert eviction.hit(0, 1.0) and eviction.nbytes == 10**12
    eviction.remove(0)
    assert len(eviction) == eviction.nbytes == 0


def test_threads_lose_no_count() -> None:
    eviction = Eviction(LRU, 10**6, None)

    def work(first: int) -> None:
        for number in range(first, first + 2000):
            eviction.insert(Stored(number, number), 3)
            if number % 2:
                eviction.remove(number)

    crew = [threading.Thread(target=work, args=(at * 2000,)) for at in range(4)]
    for one in crew:
        one.start()
    for one in crew:
        one.join()
    assert (len(eviction), eviction.nbytes) == (4000, 12000)
    every = list(range(0, 8000, 2))
    assert sorted(eviction._policy.victim() for _ in every) == every


@pytest.mark.parametrize(
    ("budgets", "line"),
    [
        ((0, None), "max_entries is 0; expected 1 or more, or None for no bound"),
        ((True, None), "max_entries is True; expected 1 or more, or None for no bound"),
        ((3, -1), "max_bytes is -1; expected 1 or more, or None for no bound"),
        ((3, 2.0), "max_bytes is 2.0; expected 1 or more, or None for no bound"),
    ],
)
def test_a_budget_that_is_none_is_refused(budgets: tuple[Any, Any], line: str) -> None:
    with pytest.raises(CacheError) as error:
        Eviction(LRU, *budgets)
    assert str(error.value) == line
