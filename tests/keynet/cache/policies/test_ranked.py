"""Policies that rank by a formula, beside the formula itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from keynet.cache.policies.gdsf import GDSF
from keynet.cache.policies.klfu import KLFU
from keynet.cache.policies.lfu import LFU
from keynet.cache.policies.lru_k import LRUK
from keynet.cache.policies.policy import Policy, PolicyError, Stored


def victims(policy: Policy, capacity: int, trace: np.ndarray, make: Callable) -> list[int]:
    """What goes, in order, at last all; one request in eleven removes an entry instead."""
    held: dict[int, int] = {}
    gone = []
    for number, what in enumerate(trace.tolist()):
        if number % 11 == 10 and held:
            policy.on_remove(held.pop(next(iter(held))))
        elif what in held:
            policy.on_hit(held[what])
        else:
            incoming = make(number, what, 1 + what % 3)
            policy.on_miss(incoming)
            while len(held) >= capacity:
                gone.append(policy.victim())
                held = {one: entry for one, entry in held.items() if entry != gone[-1]}
            policy.on_insert(incoming)
            held[what] = number
    return gone + [policy.victim() for _ in held]


def least_used(model: object, entry: int) -> tuple:
    times = model.times[entry]
    return len(times), times[-1]


def test_lfu_lets_go_what_was_used_least(zipf: Callable, stored: Callable, model: type) -> None:
    trace = zipf(3000, 100)
    found = victims(LFU(20), 20, trace, stored)
    assert found == victims(model(least_used), 20, trace, stored) and len(found) > 500


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("retained", [0, 10, 1000])
def test_lru_k_lets_go_by_the_kth_last_use(
    k: int, retained: int, zipf: Callable, stored: Callable, model: type
) -> None:
    class History(model):
        def __init__(self) -> None:
            super().__init__(lambda self, one: (self.kth(one), self.times[one][-1]))
            self.past: dict[object, tuple[list[int], int]] = {}

        def kth(self, entry: int) -> int:
            times = self.times[entry]
            return times[-k] if len(times) >= k else 0

        def on_insert(self, stored: Stored) -> None:
            super().on_insert(stored)
            self.times[stored.entry] = self.past.pop(stored.identity, ([], 0))[0] + [self.tick]

        def gone(self, entry: int) -> None:
            one = self.stored[entry]
            self.past[one.identity] = self.times[entry], one.size
            while sum(size for _, size in self.past.values()) > retained:
                del self.past[next(iter(self.past))]

    trace = zipf(2000, 100)
    found = victims(LRUK(20, k=k, retained=retained), 20, trace, stored)
    assert found == victims(History(), 20, trace, stored) and len(found) > 300


def test_lru_k_remembers_as_much_as_it_holds(zipf: Callable, stored: Callable) -> None:
    trace = zipf(2000, 100)
    by_default = victims(LRUK(20), 20, trace, stored)
    assert by_default == victims(LRUK(20, retained=20), 20, trace, stored)
    assert by_default != victims(LRUK(20, retained=0), 20, trace, stored)


@pytest.mark.parametrize("make", [GDSF, LFU, LRUK, KLFU])
def test_what_comes_back_was_used_last(make: Callable, stored: Callable) -> None:
    policy = make(3)
    for entry in (4, 5, 3):  # 3 had gone for one that could not be stored
        policy.on_insert(stored(entry, 1))
    assert [policy.victim() for _ in range(3)] == [4, 5, 3]


def test_two_entries_of_one_request_are_remembered_once() -> None:
    policy = LRUK(4, retained=2)
    for entry in (0, 1):
        policy.on_insert(Stored(entry, "a"))
    assert [policy.victim(), policy.victim()] == [0, 1]
    policy.on_insert(Stored(2, "a"))
    policy.on_insert(Stored(3, "b"))
    assert policy.victim() == 3  # a was used before


def test_gdsf_lets_go_by_age_uses_cost_and_size(
    zipf: Callable, stored: Callable, model: type
) -> None:
    class Priorities(model):
        def __init__(self) -> None:
            super().__init__(lambda self, one: (self.priority[one], self.times[one][-1]))
            self.age, self.priority = 0.0, {}

        def on_hit(self, entry: int, similarity: float = 1.0) -> None:
            super().on_hit(entry)
            self.value(entry)

        def on_insert(self, stored: Stored) -> None:
            super().on_insert(stored)
            self.value(stored.entry)

        def value(self, entry: int) -> None:
            one = self.stored[entry]
            self.priority[entry] = self.age + len(self.times[entry]) * (one.cost / one.size)

        def gone(self, entry: int) -> None:
            self.age = self.priority[entry]

    trace = zipf(3000, 100)
    found = victims(GDSF(20), 20, trace, stored)
    assert found == victims(Priorities(), 20, trace, stored) and len(found) > 500


def score(bias: float | str) -> Callable:
    """KLFU's score, from its definition."""

    def rank(model: object, entry: int) -> tuple:
        uses = {one: len(times) for one, times in model.times.items()}
        last = {one: times[-1] for one, times in model.times.items()}
        first = min(last.values())
        span = max(1, model.tick - first)
        as_often = sum(n >= uses[entry] for n in uses.values()) / len(uses)
        weight = as_often if bias == "rank" else bias
        freq, recency = 1 - as_often, (last[entry] - first) / span
        return freq * (1 - weight) + recency * weight, last[entry]

    return rank


@pytest.mark.parametrize("bias", [0.0, 0.3, 0.6, 1.0, "rank"])
def test_klfu_lets_go_the_lowest_score(
    bias: float | str, zipf: Callable, stored: Callable, model: type
) -> None:
    trace = zipf(1200, 60)
    found = victims(KLFU(15, tail_bias=bias), 15, trace, stored)
    assert found == victims(model(score(bias)), 15, trace, stored) and len(found) > 200


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: KLFU(2, tail_bias=1.5), "tail_bias is 1.5; expected a number, 0 to 1"),
        (lambda: KLFU(2, tail_bias="tail"), "tail_bias is 'tail'; expected 0 to 1, or \"rank\""),
        (lambda: LRUK(2, k=0), "k is 0; expected a whole number, 1 or more"),
        (lambda: LRUK(2, retained=-1), "retained is -1; expected a whole number, 0 or more"),
    ],
)
def test_a_parameter_that_is_none_is_refused(make: Callable, line: str) -> None:
    with pytest.raises(PolicyError) as error:
        make()
    assert str(error.value) == line
