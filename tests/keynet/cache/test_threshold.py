from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from keynet.cache.threshold import fit_closed_loop, fit_fixed_store, served_needed


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


def test_equals_the_definition_with_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        sims = rng.random(600).round(2)
        correct = rng.random(600) < 0.9 + 0.1 * sims
        expected = None
        for value in np.unique(sims)[::-1]:
            served = sims >= value
            n, false_hits = int(served.sum()), int((served & ~correct).sum())
            if n < served_needed(0.05):
                continue
            if binom.cdf(false_hits, n, 0.05) > 0.05:
                break
            expected = value
        assert fit_fixed_store(sims, correct, 0.05).value == expected


def test_ties_are_served_together() -> None:
    sims = np.concatenate([np.full(299, 0.9), np.full(100, 0.8)])
    correct = np.concatenate([np.ones(299, bool), np.ones(50, bool), np.zeros(50, bool)])
    assert fit_fixed_store(sims, correct, 0.01).value == 0.9


def test_first_failure_ends_the_sequence() -> None:
    correct = np.ones(5000, bool)
    correct[[300, 301, 302]] = False  # over budget at 301 served, within it again far below
    assert fit_fixed_store(-np.arange(5000.0), correct, 0.01).value == -299.0


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
    with pytest.raises(ValueError, match=r"\(2,\)"):
        fit_fixed_store([1.0, 0.5], [True], 0.01)
    with pytest.raises(ValueError, match="NaN"):
        fit_fixed_store([np.nan], [True], 0.01)


def closed(rates: dict[float, float], served: int = 1000, **options: int) -> float | None:
    """Fit over a replay whose false-hit rate at the strictest key >= threshold is given."""

    def replay(subsample: int, threshold: float) -> tuple[int, int]:
        key = min(value for value in rates if value >= threshold)
        return served, round(rates[key] * served)

    return fit_closed_loop(replay, list(rates), 0.01, 1000, **{"refine": 0, **options}).value


def test_closed_loop_takes_the_loosest_before_the_first_failure() -> None:
    assert closed({0.9: 0.0, 0.8: 0.01, 0.7: 0.02, 0.6: 0.0}) == 0.8
    assert closed({0.9: 0.0, 0.8: 0.01}) == 0.8
    assert closed({0.9: 0.02, 0.8: 0.0}) is None


def test_closed_loop_needs_every_subsample() -> None:
    def replay(subsample: int, threshold: float) -> tuple[int, int]:
        return 1000, 11 if subsample == 11 and threshold < 0.85 else 10

    assert fit_closed_loop(replay, [0.9, 0.8], 0.01, 1000, refine=0).value == 0.9
    assert fit_closed_loop(replay, [0.9, 0.8], 0.01, 1000, refine=0, subsamples=11).value == 0.8


def test_closed_loop_refines_towards_the_first_failure() -> None:
    def replay(subsample: int, threshold: float) -> tuple[int, int]:
        return 1000, 0 if threshold >= 0.83 else 500

    value = fit_closed_loop(replay, [0.9, 0.8], 0.01, 1000, refine=6).value
    assert value is not None
    assert 0.83 <= value < 0.835


def test_a_false_hit_among_few_served_decides_nothing() -> None:
    def replay(subsample: int, threshold: float) -> tuple[int, int]:
        return (20, 1) if threshold > 0.85 else (1000, 5)

    assert fit_closed_loop(replay, [0.9, 0.8], 0.01, 1000, refine=0).value == 0.8
    alone = fit_closed_loop(replay, [0.9], 0.01, 1000)
    assert alone.value is None
    assert "keeps the budget" in alone.reason


def test_closed_loop_with_too_few_visits_has_no_threshold() -> None:
    found = fit_closed_loop(lambda s, t: (100, 0), [0.5], 0.001, 2994, data="toy", key_space="f0")
    assert found.value is None
    assert "needs 2995 visits" in found.reason
    assert (found.kind, found.confidence, found.data, found.key_space) == (
        "closed_loop",
        None,
        "toy",
        "f0",
    )
