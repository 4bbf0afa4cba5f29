from __future__ import annotations

import numpy as np
import pytest

from keynet.cache.policies.catalog import POLICIES
from keynet.cache.policies.lru import LRU
from keynet.cache.policies.policy import PolicyError, Stored
from keynet.replay.policy_replay import replay_policy


def test_counts_what_was_found() -> None:
    found = replay_policy(LRU(2), 2, [7, 7, 8, 9, 7, 9])
    assert found.hit.tolist() == [False, True, False, False, False, True]
    assert (found.hits, found.hit_rate, found.size_hit, found.size_hit_rate) == (2, 1 / 3, 2, 1 / 3)


def test_sizes_count_and_what_is_too_large_is_passed_by() -> None:
    found = replay_policy(LRU(10), 10, [1, 2, 1, 3, 1, 2, 4, 2], [6, 4, 6, 11, 6, 4, 10, 4])
    assert found.hit.tolist() == [False, False, True, False, True, True, False, False]
    assert found.size_hit == 16 and found.size_hit_rate == 16 / 51


def test_what_is_stored_keeps_its_size() -> None:
    found = replay_policy(LRU(10), 10, [1, 1, 2, 1], [2, 9, 8, 2])
    assert found.hit.tolist() == [False, True, False, True]


class Watched(LRU):
    """Holds the sizes of what is held."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.capacity, self.sizes = capacity, {}

    def on_insert(self, stored: Stored) -> None:
        super().on_insert(stored)
        self.sizes[stored.entry] = stored.size
        assert sum(self.sizes.values()) <= self.capacity

    def victim(self) -> int:
        entry = super().victim()
        del self.sizes[entry]
        return entry


def test_never_holds_more_than_the_capacity() -> None:
    rng = np.random.default_rng(0)
    found = replay_policy(Watched(50), 50, rng.integers(0, 40, 2000), rng.integers(1, 60, 2000))
    assert 0 < found.hits < 2000


def test_objects_of_64_bits_are_told_apart() -> None:
    objects = np.array([2**64 - 1, 2**64 - 2, 2**64 - 1], np.uint64)
    assert replay_policy(LRU(2), 2, objects).hit.tolist() == [False, False, True]


def test_all_is_found_where_all_fits() -> None:
    objects = np.random.default_rng(1).integers(0, 30, 500)
    first = np.isin(np.arange(500), np.unique(objects, return_index=True)[1])
    for name, make in POLICIES.items():
        if name not in ("ssrp", "heat_graph"):
            assert (replay_policy(make(30), 30, objects).hit == ~first).all(), name


def test_vectors_are_the_objects() -> None:
    rows = np.eye(4, dtype=np.float32)
    rows[1] = 0.8 * rows[0] + 0.6 * rows[3]  # nearest to 0
    objects = [2, 0, 1, 3, 2]
    assert replay_policy(POLICIES["ssrp"](3), 3, objects, None, rows).hit.tolist()[-1]
    assert not replay_policy(LRU(3), 3, objects, None, rows).hit.tolist()[-1]
    with pytest.raises(ValueError, match="objects are 0 to 3 and there are 3 vectors"):
        replay_policy(POLICIES["ssrp"](3), 3, objects, None, rows[:3])


def test_an_empty_trace_is_one() -> None:
    found = replay_policy(LRU(2), 2, [])
    assert (found.hits, found.hit_rate, found.size_hit_rate) == (0, 0.0, 0.0)


def test_bad_input_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"\(1,\) sizes for \(2,\) objects; give one each"):
        replay_policy(LRU(2), 2, [1, 2], [1])
    with pytest.raises(ValueError, match="size 1 is 0; expected 1 or more"):
        replay_policy(LRU(2), 2, [1, 2], [1, 0])
    with pytest.raises(PolicyError, match="capacity is 0"):
        replay_policy(LRU(2), 0, [1])
