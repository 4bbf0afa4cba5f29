from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from keynet.evaluation.calibration_check import (
    CLOSED_LOOP,
    FIXED_STORE,
    HINDSIGHT,
    NAIVE,
    RULES,
    Outcome,
    Pool,
    check_records,
    check_split,
    halves,
)
from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Sheet
from keynet.evaluation.settings import JudgeSettings
from keynet.replay.closed_loop import replay

BUDGET = 0.01
SETTINGS = JudgeSettings(budgets=(BUDGET,), wholes=2, halves=6)
SHEET = Sheet("toy", "test", "single_pass", "", None)


@pytest.fixture(scope="module")
def both(labels: Labels) -> Labels:
    return labels.take(labels.modalities == "image+text")


@pytest.fixture(scope="module")
def pool(both: Labels, keys_of: Callable[..., np.ndarray]) -> Pool:
    return Pool.of(keys_of(both, noise=1.1), both)


@pytest.fixture(scope="module")
def row(pool: Pool) -> dict[str, dict]:
    return check_split(pool, SETTINGS, BUDGET, 3)


def test_halves_are_of_whole_entities_and_differ_by_number(both: Labels) -> None:
    first, second = halves(both, 0, 1)
    assert sorted([*first, *second]) == list(range(len(both)))
    assert not set(both.entity[first]) & set(both.entity[second])
    assert abs(len(np.unique(both.entity[first])) - len(np.unique(both.entity[second]))) <= 1
    assert halves(both, 0, 1)[0].tolist() == first.tolist()
    assert halves(both, 0, 2)[0].tolist() != first.tolist()
    assert halves(both, 1, 1)[0].tolist() != first.tolist()
    with pytest.raises(ValueError, match="1 entity cannot be cut in two"):
        halves(both.take(both.entity == both.entity[0]), 0, 0)


def test_a_split_is_the_same_each_time_and_fits_into_json(pool: Pool, row: dict[str, dict]) -> None:
    assert set(row) == {CLOSED_LOOP, NAIVE, FIXED_STORE, HINDSIGHT}
    assert json.loads(json.dumps(row)) == row
    assert check_split(pool, SETTINGS, BUDGET, 3) == row
    assert check_split(pool, SETTINGS, BUDGET, 4) != row
    assert row[CLOSED_LOOP]["served"] > 300


def test_no_rule_that_keeps_the_budget_beats_hindsight(pool: Pool) -> None:
    for number in range(4):
        found = {
            name: Outcome(**one)
            for name, one in check_split(pool, SETTINGS, BUDGET, number).items()
        }
        best = found[HINDSIGHT]
        assert best.keeps(BUDGET) and best.hits > 0
        for rule in RULES:
            assert not found[rule].keeps(BUDGET) or found[rule].hits <= best.hits


def test_counts_are_those_of_a_replay_of_the_other_half(
    pool: Pool, both: Labels, row: dict[str, dict]
) -> None:
    other = halves(both, SETTINGS.seed, 3)[1]
    seeds = np.random.default_rng([SETTINGS.seed, 3, 1]).integers(2**31, size=3).tolist()
    order = np.random.default_rng(seeds[2]).permutation(other)
    found = replay(pool.keys, both.group, order, row[NAIVE]["threshold"])
    assert (found.num_served, found.false_hits) == (row[NAIVE]["served"], row[NAIVE]["false_hits"])


def test_the_other_half_has_no_say_in_the_thresholds(pool: Pool, both: Labels) -> None:
    row = check_split(pool, SETTINGS, BUDGET, 3)
    other = halves(both, SETTINGS.seed, 3)[1]
    group = both.group.copy()
    group[other] = group[other][::-1]  # all of its answers are wrong now
    spoilt = check_split(replace(pool, labels=replace(both, group=group)), SETTINGS, BUDGET, 3)
    for rule in RULES:
        assert spoilt[rule]["threshold"] == row[rule]["threshold"]
    for rule in (CLOSED_LOOP, NAIVE):
        assert spoilt[rule]["false_hits"] > row[rule]["false_hits"]


def test_records_count_what_broke_and_what_was_reached() -> None:
    def one(threshold: float | None, served: int, false_hits: int) -> dict:
        return {"threshold": threshold, "served": served, "false_hits": false_hits}

    best = one(0.8, 1000, 10)
    rows = [
        {CLOSED_LOOP: one(0.9, 500, 5), NAIVE: one(0.7, 1200, 13), FIXED_STORE: one(None, 0, 0),
         HINDSIGHT: best},
        {CLOSED_LOOP: one(0.9, 500, 6), NAIVE: best, FIXED_STORE: one(0.99, 100, 1),
         HINDSIGHT: best},
    ]  # fmt: skip
    found = {(r.method, r.metric): r for r in check_records(SHEET, rows, BUDGET)}
    broken = {rule: found[rule, "broken_at_0.01"].value for rule in (*RULES, HINDSIGHT)}
    assert broken == {CLOSED_LOOP: 0.5, NAIVE: 0.5, FIXED_STORE: 0.0, HINDSIGHT: 0.0}
    share = found[CLOSED_LOOP, "hits_of_hindsight_at_0.01"]
    assert share.value == pytest.approx((495 + 494) / 2 / 990)
    assert (share.low, share.high) == (494 / 990, 495 / 990)
    assert found[FIXED_STORE, "hits_of_hindsight_at_0.01"].value == pytest.approx(99 / 990 / 2)
    assert found[FIXED_STORE, "without_threshold"].value == 0.5
    assert found[NAIVE, "replay_false_hit_rate_at_0.01"].high == pytest.approx(13 / 1200)
