from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from keynet.cache.threshold import (
    Counts,
    Threshold,
    fit_closed_loop,
    fit_fixed_store,
    served_needed,
)
from keynet.replay.closed_loop import count_served
from keynet.replay.neighbours import Ints, Neighbours


@pytest.mark.parametrize(("budget", "needed"), [(0.05, 59), (0.01, 299), (0.001, 2995)])
def test_served_needed(budget: float, needed: int) -> None:
    assert served_needed(budget) == needed
    assert (1 - budget) ** needed <= 0.05 < (1 - budget) ** (needed - 1)


def test_one_query_decides_between_a_threshold_and_none() -> None:
    sims = np.linspace(1, 0.5, 299)
    assert fit_fixed_store(sims, np.ones(299, bool), 0.01).value == 0.5
    short = fit_fixed_store(sims[:298], np.ones(298, bool), 0.01)
    assert short.value is None
    assert "needs 299" in short.reason
    assert "298" in short.reason
    found = fit_fixed_store(sims, np.ones(299, bool), 0.01, 0.05, data="toy", key_space="f0")
    assert found == Threshold(0.5, "fixed_store", 0.01, 0.95, 299, "toy", "f0")
    wrong = fit_fixed_store(sims, np.arange(299) > 0, 0.01)
    assert wrong.value is None
    assert wrong.reason == "the 299 most similar queries already break the budget of 0.01"
    assert fit_fixed_store([], [], 0.01).reason.endswith("has 0")


def test_equals_the_definition_with_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        sims = rng.random(600).round(2)
        correct = rng.random(600) < 0.9 + 0.1 * sims
        expected, most = None, -1
        for value in np.unique(sims)[::-1]:
            served = sims >= value
            n, false_hits = int(served.sum()), int((served & ~correct).sum())
            if n < served_needed(0.05):
                continue
            if binom.cdf(false_hits, n, 0.05) > 0.05:
                break
            if n - false_hits > most:
                expected, most = value, n - false_hits
        assert fit_fixed_store(sims, correct, 0.05).value == expected


def test_ties_are_served_together() -> None:
    sims = np.concatenate([np.full(299, 0.9), np.full(100, 0.8)])
    correct = np.concatenate([np.ones(299, bool), np.ones(50, bool), np.zeros(50, bool)])
    assert fit_fixed_store(sims, correct, 0.01).value == 0.9


def test_first_failure_ends_the_sequence() -> None:
    correct = np.ones(5000, bool)
    correct[[300, 301, 302]] = False  # over budget at 301 served, within it again far below
    assert fit_fixed_store(-np.arange(5000.0), correct, 0.01).value == -299.0


def test_a_looser_threshold_is_taken_for_correct_hits_alone() -> None:
    sims = np.linspace(1, 0.5, 500)
    correct = np.arange(500) < 400
    correct[450] = True  # 50 false hits before it: 5 % would allow 11
    correct[395:398] = False
    assert fit_fixed_store(sims, correct, 0.05).value == sims[399]


def test_budget_is_broken_in_at_most_delta_of_the_runs() -> None:
    rng = np.random.default_rng(1)
    broken = 0
    for _ in range(300):
        sims = rng.random(2000)
        error = 0.04 * (1 - sims)  # served from t on: 0.02 (1 - t), so 1 % is at t = 0.5
        value = fit_fixed_store(sims, rng.random(2000) >= error, 0.01).value
        broken += value is not None and value < 0.5
    assert broken <= 0.05 * 300


def test_queries_without_a_candidate_are_never_served() -> None:
    sims = np.concatenate([np.full(59, 0.7), np.full(500, -np.inf)])
    assert fit_fixed_store(sims, sims > 0, 0.05).value == 0.7


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="budget is 0"):
        fit_fixed_store([1.0], [True], 0.0)
    with pytest.raises(ValueError, match="budget is 1; give a share"):
        fit_fixed_store([1.0], [True], 1)
    with pytest.raises(ValueError, match="delta is 1; give a share"):
        served_needed(0.01, 1)
    with pytest.raises(ValueError, match=r"\(2,\)"):
        fit_fixed_store([1.0, 0.5], [True], 0.01)
    with pytest.raises(ValueError, match="NaN"):
        fit_fixed_store([np.nan], [True], 0.01)


def closed(
    rates: dict[float, float], *, halves: tuple[float, ...] = (1.0, 1.0), **options: Any
) -> Threshold:
    """Fit where whole passes have the rate at the strictest key >= threshold, halves a multiple."""
    distinct = options.pop("distinct", 10**9)

    def replay(number: int, threshold: float) -> Counts:
        key = min(value for value in rates if value >= threshold)
        times = 1.0 if number < 3 else halves[number - 3]
        served = 10**6 * (1 + sorted(rates, reverse=True).index(key))
        return Counts(served, round(rates[key] * times * served), distinct)

    given = {"wholes": 3, "halves": len(halves), "refine": 0} | options
    return fit_closed_loop(replay, list(rates), 0.01, **given)


def test_closed_loop_takes_the_loosest_that_keeps_the_budget() -> None:
    assert closed({0.9: 0.0, 0.8: 0.0099, 0.7: 0.02, 0.6: 0.03}).value == 0.8
    assert closed({0.9: 0.0, 0.8: 0.0099}).value == 0.8
    assert closed({0.9 - i / 100: i / 1010 for i in range(60)}).value == pytest.approx(0.8)
    found = closed({0.9: 0.02, 0.8: 0.03})
    assert found.value is None
    assert "keeps the budget of 0.01" in found.reason


def test_closed_loop_leaves_a_margin_of_deviations_of_the_halves() -> None:
    rates = {0.9: 0.001, 0.8: 0.0035, 0.7: 0.0052, 0.6: 0.0058}
    spread = (0.5, 0.8, 1.0, 1.2, 1.5)  # deviation .38: limits are 1.885 times the rates
    assert float(np.std(spread, ddof=1)) == pytest.approx(0.38, abs=0.01)
    assert closed(rates, halves=spread).value == 0.7
    # halves with half the rate, as where half the store holds half the look-alikes: same margin
    assert closed(rates, halves=tuple(s / 2 for s in spread)).value == 0.7
    assert closed(rates, halves=tuple(1 + 2 * (s - 1) for s in spread)).value == 0.8


def test_the_margin_is_at_least_that_of_independent_queries() -> None:
    equal = {0.9: 0.0, 0.8: 0.006}  # .006 + 2.33 * .0039 for 400 of them, * .0012 for 4,000
    assert closed(equal, distinct=400).value == 0.9
    assert closed(equal, distinct=4000).value == 0.8


def test_that_margin_is_of_shares() -> None:
    """Of independent queries of which half is wrong, the deviation is that of a coin."""
    budget, deviation, served = 0.6, 0.5 / 10, 10**6  # of 100 distinct queries
    for rate, kept in ((0.6 - 2.34 * deviation, True), (0.6 - 2.31 * deviation, False)):
        counts = Counts(served, round(rate * served), 100)

        def replay(number: int, threshold: float, counts: Counts = counts) -> Counts:
            return counts

        found = fit_closed_loop(replay, [0.5], budget, wholes=1, halves=2, refine=0)
        assert (found.value is not None) is kept


def test_fuller_halves_do_not_narrow_the_margin() -> None:
    rates = {0.9: 0.001, 0.8: 0.0035, 0.7: 0.0052, 0.6: 0.0058}
    spread = (0.5, 0.8, 1.0, 1.2, 1.5)
    assert closed(rates, halves=tuple(2 * s for s in spread)).value == 0.8


def test_a_pass_that_serves_nothing_is_no_division_by_zero() -> None:
    found = fit_closed_loop(
        lambda number, threshold: Counts(0, 0, 10**9), [0.5], 0.01, wholes=1, halves=2, refine=0
    )
    assert (found.value, found.n) == (0.5, 0)


def test_the_first_whole_pass_decides_what_pays_and_is_told() -> None:
    def replay(number: int, threshold: float) -> Counts:
        assert 0 <= number < 4
        return Counts(1000 + (number if threshold > 0.85 else -number), 0, 10**9)

    assert fit_closed_loop(replay, [0.8, 0.9], 0.01, wholes=2, halves=2).n == 1000
    found = fit_closed_loop(replay, [0.8, 0.9], 0.01, wholes=2, halves=2, refine=0)
    assert found.value == 0.8  # by the others .9 would serve more

    def as_many(number: int, threshold: float) -> Counts:
        return Counts(1000, 5 if (threshold > 0.85) == (number == 0) else 0, 10**9)

    found = fit_closed_loop(as_many, [0.8, 0.9], 0.01, wholes=2, halves=2, refine=0)
    assert found.value == 0.8  # by the others .9 would serve fewer falsely


def test_all_passes_count_where_each_serves_just_enough() -> None:
    def replay(number: int, threshold: float) -> Counts:
        return Counts(1000, 0 if number in (0, 3, 4) else 20, 299)

    found = fit_closed_loop(replay, [0.5], 0.01, wholes=3, halves=2, refine=0)
    assert (found.value, found.n) == (None, 0)
    assert found.reason == "no threshold tried keeps the budget of 0.01"


def test_the_deviation_of_two_halves_is_that_of_a_sample() -> None:
    rates = {0.9: 0.001, 0.8: 0.0042}  # deviation .71: limits are 2.64 times the rates
    assert closed(rates, halves=(0.5, 1.5)).value == 0.9


def test_closed_loop_needs_passes() -> None:
    with pytest.raises(ValueError, match="wholes=0, halves=2; give at least 1 and 2"):
        fit_closed_loop(lambda n, t: Counts(1, 0, 1), [0.5], 0.01, wholes=0, halves=2)
    with pytest.raises(ValueError, match="wholes=1, halves=1; give at least 1 and 2"):
        fit_closed_loop(lambda n, t: Counts(1, 0, 1), [0.5], 0.01, wholes=1, halves=1)


def test_closed_loop_refines_towards_the_first_failure() -> None:
    def replay(number: int, threshold: float) -> Counts:
        return Counts(1000, 0 if threshold >= 0.83 else 500, 1000)

    value = fit_closed_loop(replay, [0.9, 0.8], 0.01, wholes=1, halves=2, refine=6).value
    assert value is not None
    assert 0.83 <= value < 0.835


def test_look_alikes_at_the_top_do_not_end_the_search() -> None:
    assert closed({0.9: 0.05, 0.8: 0.02, 0.7: 0.001, 0.6: 0.002, 0.5: 0.1}).value == 0.6


def test_closed_loop_is_no_looser_than_pays() -> None:
    """From .7 on, looser thresholds serve more and more of it falsely, within the budget."""
    counts = {0.9: (2000, 0), 0.8: (5000, 2), 0.7: (9900, 10), 0.6: (9950, 90), 0.5: (10**4, 200)}

    def replay(number: int, threshold: float) -> Counts:
        return Counts(*counts[min(v for v in counts if v >= threshold)], 10**9)

    for budget, best in ((0.05, 0.7), (0.01, 0.7), (0.0005, 0.8)):
        found = fit_closed_loop(replay, list(counts), budget, wholes=2, halves=2, refine=0)
        assert found.value == best, budget


def test_few_distinct_questions_decide_nothing() -> None:
    assert closed({0.9: 0.0}, distinct=299).value == 0.9
    found = closed({0.9: 0.0}, distinct=298, data="toy", key_space="f0")
    assert found.value is None
    assert found.reason == "needs 299 distinct questions served for 0.01, had 298"
    assert (found.kind, found.confidence, found.data, found.key_space) == (
        "closed_loop",
        None,
        "toy",
        "f0",
    )

    assert closed({0.9: 0.0}, distinct=0).reason.endswith("had 0")

    def replay(number: int, threshold: float) -> Counts:
        return Counts(20, 1, 20) if threshold > 0.85 else Counts(1000, 4, 1000)

    assert fit_closed_loop(replay, [0.9, 0.8], 0.01, wholes=1, halves=2, refine=0).value == 0.8


def test_closed_loop_breaks_the_budget_in_few_samples() -> None:
    """200 things, three questions each, four noisy visits; samples of one world with look-alikes.

    The mean rate alone would break the budget in about a third of them.
    """
    budget, runs, found, broken, broken_by_mean = 0.03, 20, 0, 0, 0
    for run in range(runs):
        rng = np.random.default_rng(run)
        worlds = [look_alikes(rng) for _ in range(2)]
        (near, group), (other, theirs) = worlds
        everything = np.arange(len(group))
        things = everything // 12
        orders = [rng.permutation(everything) for _ in range(4)]
        orders += [
            rng.permutation(everything[np.isin(things, rng.permutation(200)[:100])])
            for _ in range(16)
        ]

        @functools.cache
        def passes(number: int, value: float) -> Counts:
            return count_served(near, group, group, orders[number], value)  # noqa: B023

        candidates = near.candidates(group)
        threshold = fit_closed_loop(passes, candidates, budget, wholes=4, halves=16).value
        rate = [passes(0, v).false_hits / max(1, passes(0, v).served) for v in candidates.tolist()]
        loosest = candidates[np.flatnonzero(np.array(rate) <= budget)[-1]]
        order = rng.permutation(everything)
        for value in (threshold, float(loosest)):
            counts = count_served(other, theirs, theirs, order, value or 2.0)
            over = counts.false_hits > budget * counts.served
            broken += over and value is threshold
            broken_by_mean += over and value is not threshold
        found += threshold is not None
    assert found >= 0.8 * runs
    assert broken <= 0.15 * runs
    assert broken_by_mean >= 0.3 * runs


def look_alikes(rng: np.random.Generator) -> tuple[Neighbours, Ints]:
    """Keys of 200 things, every fourth much like another, and their groups: thing and question."""
    thing = rng.normal(size=(200, 1, 16))
    alike = rng.permutation(200)[:50]
    thing[alike[:25]] = thing[alike[25:]] + rng.uniform(0.1, 0.6, (25, 1, 1)) * rng.normal(
        size=(25, 1, 16)
    )
    question = rng.normal(size=(1, 3, 16))
    centre = np.repeat((thing + 2 * question).reshape(600, 16), 4, axis=0)
    keys = centre + rng.gamma(2, 0.1, (2400, 1)) * rng.normal(size=(2400, 16))
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    return Neighbours.of(unit.astype(np.float32)), np.repeat(np.arange(600), 4)
