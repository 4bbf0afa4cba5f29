from __future__ import annotations

import numpy as np
import pytest

from keynet.cache.acceptance import FixedThreshold
from keynet.cache.policies.policy import PolicyError
from keynet.replay.cache_replay import KeyedRequests, check_policies, replay_cache
from keynet.replay.closed_loop import FALSE_HIT, HIT, MISS, replay
from keynet.replay.semantic_trace import SemanticTrace


def trace_of(order: list[int], scope: list[str] | None = None) -> SemanticTrace:
    visits = len(order)
    return SemanticTrace(
        request=np.array(order),
        object=np.array(order),
        time=np.arange(visits, dtype=np.float64),
        size=np.full(visits, 10),
        cost=np.ones(visits),
        scope=np.array(scope or [""] * visits),
        verbatim=np.zeros(visits, bool),
    )


def pool_of(count: int = 120, groups: int = 30, noise: float = 1.0) -> KeyedRequests:
    rng = np.random.default_rng(0)
    group = rng.integers(groups, size=count)
    rows = rng.standard_normal((groups, 32))[group] + noise * rng.standard_normal((count, 32))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return KeyedRequests.of_rows("toy", rows.astype(np.float32), group, np.full(count, "image"))


@pytest.mark.parametrize("threshold", [None, 0.5, 0.7, 0.9, 1.0])
def test_it_serves_what_the_nearest_key_cache_serves(threshold: float | None) -> None:
    pool = pool_of()
    order = np.random.default_rng(1).integers(120, size=300)
    found = replay_cache(pool, trace_of(order.tolist()), FixedThreshold(threshold))
    exact = replay(pool.vectors, pool.group, order, threshold)
    assert (found.outcome == exact.outcome).all() and (found.served == exact.served).all()
    assert (found.oracle == exact.oracle).all()
    there = exact.served >= 0
    assert np.allclose(found.similarity[there], exact.similarity[there], atol=1e-5)
    if threshold == 0.5:  # else what follows would be said of nothing
        assert set(found.outcome.tolist()) == {MISS, HIT, FALSE_HIT}
    assert (found.seconds > 0).all()


def test_scopes_and_modalities_never_meet() -> None:
    rows = np.eye(4, dtype=np.float32)[[0, 0, 0]]
    pool = KeyedRequests.of_rows(
        "toy", rows, np.zeros(3, np.int64), np.array(["image", "image", "text"])
    )
    trace = trace_of([0, 1, 2, 1], ["a", "b", "a", "a"])
    found = replay_cache(pool, trace, FixedThreshold(0.5))
    assert found.outcome.tolist() == [MISS, MISS, MISS, HIT]
    assert found.oracle.tolist() == [False, False, False, True]
    assert found.served.tolist() == [-1, -1, -1, 0]


def test_capacity_and_policy_decide_what_is_kept() -> None:
    pool = KeyedRequests.of_rows(
        "toy", np.eye(4, dtype=np.float32), np.arange(4), np.full(4, "image")
    )
    trace = trace_of([0, 1, 0, 2, 0, 1])
    rule = FixedThreshold(1.0)
    lru = replay_cache(pool, trace, rule, policy="lru", max_entries=2)
    assert lru.outcome.tolist() == [MISS, MISS, HIT, MISS, HIT, MISS]
    assert replay_cache(pool, trace, rule, max_entries=3).outcome[-1] == HIT


def test_entries_expire_by_the_time_of_the_trace() -> None:
    pool = KeyedRequests.of_rows(
        "toy", np.eye(2, dtype=np.float32), np.arange(2), np.full(2, "image")
    )
    trace = trace_of([0, 0, 1, 1, 1, 0])
    found = replay_cache(pool, trace, FixedThreshold(1.0), ttl=3.0)
    assert found.outcome.tolist() == [MISS, HIT, MISS, HIT, HIT, MISS]


def test_every_policy_runs_on_the_time_of_the_trace() -> None:
    pool, order = pool_of(), np.random.default_rng(2).integers(120, size=200).tolist()
    for policy in ("ssrp", "heat_graph", "arc"):
        runs = [
            replay_cache(pool, trace_of(order), FixedThreshold(0.8), policy=policy, max_entries=9)
            for _ in range(2)
        ]
        assert (runs[0].outcome == runs[1].outcome).all()
        assert (runs[0].outcome == HIT).any()


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(PolicyError, match="no policy 'lfru'; known are lru, lfu"):
        check_policies(["lru", "lfru"])
