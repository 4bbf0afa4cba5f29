from __future__ import annotations

import time

import numpy as np
import pytest

from keynet.replay.closed_loop import FALSE_HIT, HIT, MISS, count_served, replay
from keynet.replay.neighbours import Neighbours, similarities


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def clustered(n: int, clusters: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    group = rng.integers(clusters, size=n)
    centres = rng.normal(size=(clusters, 32))
    return unit(centres[group] + noise * rng.normal(size=(n, 32))), group


def brute_force(
    keys: np.ndarray, group: np.ndarray, order: np.ndarray, threshold: float, scope: np.ndarray
) -> tuple[list[int], list[int]]:
    sims = similarities(keys, keys).astype(np.float64)
    stored: list[int] = []
    served, outcome = [], []
    for visit in order.tolist():
        mine = [s for s in stored if scope[s] == scope[visit]]
        best = max(mine, key=lambda s: sims[visit, s], default=-1)  # max keeps the earliest
        if best >= 0 and sims[visit, best] >= threshold:
            served.append(best)
            outcome.append(HIT if group[best] == group[visit] else FALSE_HIT)
        else:
            stored.append(visit)
            served.append(-1)
            outcome.append(MISS)
    return served, outcome


@pytest.mark.parametrize("length", [2, 8, 96])
@pytest.mark.parametrize("kind", ["random", "clustered", "codes", "identities"])
def test_equals_brute_force(kind: str, length: int) -> None:
    rng = np.random.default_rng(3)
    if kind == "random":
        keys, group = unit(rng.normal(size=(300, 6))), rng.integers(40, size=300)
    elif kind == "clustered":
        keys, group = clustered(300, 12, 0.6, 4)
    elif kind == "codes":  # many ties
        keys, group = clustered(300, 12, 0.6, 5)
        keys = np.where(keys[:, :24] >= 0, 1, -1).astype(np.float32) / np.float32(np.sqrt(24))
    else:
        group = rng.integers(40, size=300)
        keys = unit(rng.normal(size=(40, 32)))[group]
    scope = rng.choice(["image", "text"], size=300)
    question = rng.integers(100, size=300)
    order = np.concatenate([rng.permutation(300), rng.integers(300, size=100)])
    neighbours = Neighbours.of(keys, scope, length)
    for threshold in (1.0, 0.95, 0.8, 0.5, 0.3, -1.0):
        served, outcome = brute_force(keys, group, order, threshold, scope)
        found = replay(neighbours, group, order, threshold)
        assert found.served.tolist() == served
        assert found.outcome.tolist() == outcome
        hit = found.served >= 0
        assert count_served(neighbours, group, question, order, threshold) == (
            found.num_served,
            found.false_hits,
            len(set(question[order[hit]].tolist())),
        )
        assert (found.similarity[hit] >= threshold).all()
        assert np.isnan(found.similarity[~hit]).all()


def test_the_earliest_of_equally_near_keys_is_served() -> None:
    keys = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.8, 0.6]], dtype=np.float32)
    between = unit(np.array([[1.0, 1.0]]))
    keys = np.concatenate([keys, between])
    group = np.arange(5)
    assert replay(keys, group, np.array([2, 3, 4]), 0.98).served.tolist() == [-1, -1, 2]
    assert replay(keys, group, np.array([3, 2, 4]), 0.98).served.tolist() == [-1, -1, 3]


def test_oracle_hits_when_the_group_was_seen_in_the_same_scope() -> None:
    keys = np.ones((5, 1), dtype=np.float32)
    group = np.array([0, 0, 1, 0, 1])
    result = replay(keys, group, np.arange(5), None, scope=np.array(["a", "a", "a", "b", "a"]))
    assert result.oracle.tolist() == [False, True, False, False, True]
    assert result.num_served == 0


def test_a_false_hit_inserts_nothing() -> None:
    keys = np.ones((3, 1), dtype=np.float32)
    result = replay(keys, np.array([0, 1, 1]), np.arange(3), 0.9)
    assert result.outcome.tolist() == [MISS, FALSE_HIT, FALSE_HIT]
    assert result.served.tolist() == [-1, 0, 0]
    assert result.oracle_hits == 1


def test_a_verbatim_repeat_hits_at_similarity_one() -> None:
    keys, group = clustered(50, 50, 0.1, 0)
    result = replay(keys, group, np.array([7, 7, 8, 7]), 1.0)
    assert result.served.tolist() == [-1, 7, -1, 7]
    assert result.similarity[1] == 1.0


def test_empty_order_and_bad_input() -> None:
    keys, group = clustered(10, 2, 0.1, 0)
    assert replay(keys, group, np.zeros(0, dtype=np.int64), 0.5).outcome.tolist() == []
    with pytest.raises(ValueError, match="9 groups for 10 keys"):
        replay(keys, group[:9], np.arange(9), 0.5)
    with pytest.raises(ValueError, match="norm"):
        replay(2 * keys, group, np.arange(9), 0.5)
    with pytest.raises(ValueError, match="scope"):
        replay(Neighbours.of(keys), group, np.arange(9), 0.5, scope=group)


def test_ten_thousand_visits_are_quick() -> None:
    keys, group = clustered(3000, 300, 0.8, 6)
    neighbours = Neighbours.of(keys)
    order = np.random.default_rng(0).integers(3000, size=10_000)
    start = time.process_time()
    replay(neighbours, group, order, 0.7)
    assert time.process_time() - start < 1.0
