from __future__ import annotations

from collections.abc import Callable
from heapq import heapify

import numpy as np
import pytest

from keynet.cache.policies import ssrp
from keynet.cache.policies.policy import Stored
from keynet.cache.policies.ssrp import SSRP


def angle(degrees: float) -> np.ndarray:
    radians = np.deg2rad(degrees)
    return np.array([np.cos(radians), np.sin(radians)], np.float32)


def at(entry: int, degrees: float, alignment: float | None = None, scope: str = "") -> Stored:
    return Stored(entry, entry, 1, 1.0, alignment, angle(degrees), scope)


def filled(*entries: Stored) -> SSRP:
    policy = SSRP(10)
    for entry in entries:
        policy.on_insert(entry)
    return policy


def test_of_the_nearest_two_the_less_aligned_goes() -> None:
    policy = filled(at(0, 0, 0.9), at(1, 40, 0.1), at(2, 50, 0.3), at(3, 200, -1))
    assert policy.victim() == 1
    assert policy.victim() == 2  # 0 and 2 are the nearest now
    policy = filled(at(0, 0, 0.9), at(1, 40, 0.3), at(2, 50, 0.1), at(3, 200, -1))
    assert policy.victim() == 2


def test_of_equally_aligned_ones_the_one_used_longest_ago_goes() -> None:
    policy = filled(at(0, 0), at(1, 10), at(2, 90))
    policy.on_hit(0, 0.9)
    assert policy.victim() == 1


def test_cosines_beyond_1_cost_no_less_than_nothing() -> None:
    beyond = next(degrees for degrees in range(90) if angle(degrees) @ angle(degrees) > 1)
    policy = filled(at(0, beyond, 0.9), at(1, beyond, 0.9), at(2, 180, 0.1), at(3, 180, 0.1))
    assert policy.victim() == 2


def test_none_stands_in_from_another_scope() -> None:
    policy = filled(at(0, 0, 0.5, "x"), at(1, 0, 0.4, "y"), at(2, 60, 0.9, "x"))
    assert policy.victim() == 0  # nearest to 2, and less aligned; 1 has no neighbour
    assert policy.victim() == 1  # none has one left: the less aligned
    assert policy.victim() == 2


def test_an_absent_alignment_is_neither_for_nor_against() -> None:
    assert filled(at(0, 0, None), at(1, 10, 0.2)).victim() == 0
    assert filled(at(0, 0, None), at(1, 10, -0.2)).victim() == 1


def true_costs(held: dict[int, Stored]) -> dict[int, float]:
    costs = {}
    for entry, one in held.items():
        near = [
            float(one.vector @ other.vector)
            for other in held.values()
            if other is not one and other.scope == one.scope
        ]
        costs[entry] = 1 - max(near, default=-1.0)
    return costs


@pytest.mark.parametrize("kept", [1, 4])
def test_what_goes_costs_least_of_all(
    kept: int, stored: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssrp, "KEPT", kept)
    rng = np.random.default_rng(0)
    policy, held, checked = SSRP(40), {}, 0
    for number in range(800):
        if len(held) == 40:
            costs = true_costs(held)
            gone = policy.victim()
            assert costs[gone] == pytest.approx(min(costs.values()), abs=1e-6)
            near = [e for e, cost in costs.items() if cost <= costs[gone] + 1e-9]
            aligned = {e: held[e].alignment or 0.0 for e in near}
            assert aligned[gone] == min(aligned.values())
            del held[gone]
            checked += 1
        if held and rng.random() < 0.2:
            entry = int(rng.choice(sorted(held)))
            policy.on_remove(entry)
            del held[entry]
        if held and rng.random() < 0.5:
            policy.on_hit(int(rng.choice(sorted(held))), 0.9)
        held[number] = stored(number, number, scope=str(number % 3))
        policy.on_insert(held[number])
    assert checked > 400


def test_a_large_scope_is_searched_by_codes_and_the_near_are_found() -> None:
    rng = np.random.default_rng(1)
    size, dim = 1500, 64
    assert size > ssrp.EXACT
    rows = rng.standard_normal((size, dim))
    twins = rows[:200] + 0.3 * rng.standard_normal((200, dim))  # cosine about 0.96
    rows = np.concatenate([rows, twins]).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    policy = SSRP(len(rows))
    for number in rng.permutation(len(rows)).tolist():
        policy.on_insert(Stored(number, number, vector=rows[number]))
    gone = [policy.victim() for _ in range(200)]
    pairs = {one % size for one in gone if one < 200 or one >= size}
    assert len(pairs) >= 196  # one of each pair, and hardly any other


def test_the_seed_decides_the_codes_alone() -> None:
    one, same, other = SSRP(4, 1), SSRP(4, 1), SSRP(4, 2)
    vector = np.linspace(-1, 1, 16, dtype=np.float32)
    assert (one._code(vector) == same._code(vector)).all()
    assert (one._code(vector) != other._code(vector)).any()


def test_pairs_of_what_is_gone_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    policy, rebuilt = SSRP(20), []

    def counted(pairs: list[tuple[float, float, int, int]]) -> None:
        assert all(one in policy._stored for *_, a, b in pairs for one in (a, b))
        rebuilt.append(len(pairs))
        heapify(pairs)

    monkeypatch.setattr(ssrp, "heapify", counted)
    for number in range(3000):
        vector = rng.standard_normal(4).astype(np.float32)
        policy.on_insert(Stored(number, number, vector=vector / np.linalg.norm(vector)))
        if number >= 20:
            policy.on_remove(number - 20)
        assert len(policy._pairs) <= 2 * ssrp.KEPT * 22 + ssrp.SLACK
    assert len(rebuilt) < 3000 / 15  # each is paid for by many pairs that went
    assert len(policy._near) == len(policy._near_to) == len(policy._used) == 20


def test_key_spaces_of_two_widths_are_never_compared() -> None:
    policy = SSRP(4)
    policy.on_insert(Stored(0, 0, vector=np.ones(1, np.float32), alignment=0.5))
    policy.on_insert(at(1, 0, 0.4))
    assert policy.victim() == 1


def test_one_that_lost_all_its_neighbours_finds_the_last_one_of_its_scope(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssrp, "KEPT", 1)
    policy = filled(at(0, 0, 0.5), at(1, 60, 0.5), at(2, 65, 0.4), at(3, 0, -1, "other"))
    policy.on_remove(1)  # the only one that 2 was compared with
    assert policy.victim() == 2


def test_of_pairs_that_cost_the_same_the_least_aligned_entry_goes() -> None:
    policy = filled(at(0, 0, 0.1), at(1, 0, 0.9), at(2, 90, 0.5), at(3, 90, 0.5))
    assert [policy.victim() for _ in range(2)] == [0, 2]
