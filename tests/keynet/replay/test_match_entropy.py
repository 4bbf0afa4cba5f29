from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from keynet.replay.match_entropy import (
    Matches,
    by_entropy,
    fit_pollution,
    match_entropy,
    matches,
    r2_of_bins,
)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), st.sampled_from([0.01, 0.07, 1.0]))
def test_entropy_is_shannons(similarity: list[float], temperature: float) -> None:
    sims = np.array(similarity, np.float32)
    mass = np.exp(sims.astype(float) / temperature - sims.max() / temperature)
    found = match_entropy(sims, temperature)
    assert found == pytest.approx(float(entropy(mass)), abs=1e-9)
    assert -1e-9 <= found <= np.log(len(sims)) + 1e-9


def test_equal_entries_are_wholly_undecided() -> None:
    assert match_entropy(np.full(7, 0.3, np.float32)) == pytest.approx(np.log(7))


def test_matches_see_what_is_stored_in_their_scope() -> None:
    rows = np.eye(3, dtype=np.float32)[[0, 0, 1, 0]]
    group, scope = np.array([0, 1, 1, 0]), np.array(["a", "a", "a", "b"])
    order, stored = np.array([0, 1, 2, 3, 0]), np.array([True, False, True, True, False])
    found = matches(rows, group, scope, order, stored)
    # Of five visits the first, and the first of scope b, find nothing.
    assert found.wrong.tolist() == [True, True, False]
    assert found.answerable.tolist() == [False, False, True]
    assert found.entropy[0] == 0


def drawn(a: float, onset: float, seed: int = 0, n: int = 20_000) -> Matches:
    rng = np.random.default_rng(seed)
    h = rng.uniform(0, 5, n)
    wrong = rng.random(n) < 1 - np.exp(-a * np.maximum(0, h - onset))
    return Matches(h, wrong, np.ones(n, bool))


def test_the_specifications_curve_is_found() -> None:
    fit = fit_pollution(drawn(0.75, 2.1))
    assert abs(fit.values[0] - 0.75) < 3 * fit.errors[0] and fit.errors[0] < 0.03
    assert fit.r2 > 0.3


def test_another_onset_is_found_too_and_fits_better() -> None:
    found = drawn(0.5, 1.2)
    free, fixed = fit_pollution(found, None), fit_pollution(found)
    assert free.values.tolist() == pytest.approx([0.5, 1.2], abs=0.1)
    assert free.r2 > fixed.r2


def test_entropy_that_says_nothing_fits_no_better_than_a_constant() -> None:
    found = drawn(0.75, 2.1)
    shuffled = found._replace(wrong=np.random.default_rng(1).permutation(found.wrong))
    assert fit_pollution(shuffled).r2 < 0


def test_bins_are_described_by_the_right_curve_alone() -> None:
    found = drawn(0.75, 2.1)
    fit = fit_pollution(found)
    assert r2_of_bins(found, fit) > 0.99
    assert r2_of_bins(found, replace(fit, values=np.array([5.0]))) < 0.5
    free = fit_pollution(found, None)
    assert r2_of_bins(found, free, None) > 0.99


def test_bins_hold_all() -> None:
    found = drawn(0.75, 2.1, n=1000)
    entropy_, wrong, count = by_entropy(found, 7)
    assert count.sum() == 1000 and (np.diff(entropy_) > 0).all()
    assert (wrong * count).sum() == pytest.approx(found.wrong.sum())
