from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from keynet.cache.acceptance import AcceptanceError, FixedThreshold
from keynet.cache.drift import DIRECTIONS, LEAST, WINDOW, Drift
from keynet.cache.drift_rules import DriftFollowing, DriftTightening
from keynet.types import Key, KeySpace

Make = Callable[..., Key]
BOTH = "image+text"


def rows(count: int, dim: int, seed: int, shift: float = 0.0) -> np.ndarray:
    """Unit rows, of which the first coordinates vary most; ``shift`` moves the first."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(count, dim)) * np.geomspace(1, 0.2, dim)
    found[:, 0] += shift
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def seen(drift: Drift, key: Make, vectors: np.ndarray) -> Drift:
    base = key(0)
    for vector in vectors:
        drift.observe(replace(base, vector=vector))
    return drift


def drift_of(space: KeySpace) -> Drift:
    return Drift(rows(4000, space.dim, 0), space)


def test_the_least_that_will_do_is_taken(space: KeySpace, key: Make) -> None:
    drift = Drift(rows(LEAST, space.dim, 0), space, window=2)
    seen(drift, key, rows(1, space.dim, 1))
    assert drift.kl() == 0.0  # not full yet
    assert seen(drift, key, rows(1, space.dim, 2)).kl() > 0
    with pytest.raises(AcceptanceError, match="window is 1; give at least 2 keys"):
        Drift(rows(LEAST, space.dim, 0), space, window=1)
    with pytest.raises(AcceptanceError, match=f"give at least {LEAST} keys"):
        Drift(rows(LEAST - 1, space.dim, 0), space)
    rule = DriftFollowing(drift, high=0.5, low=0.5)
    assert rule.threshold(key(1), BOTH) == 0.5


def test_without_drift_the_divergence_is_that_of_the_estimate(space: KeySpace, key: Make) -> None:
    found = [
        seen(drift_of(space), key, rows(WINDOW, space.dim, seed)).kl() for seed in range(1, 16)
    ]
    assert 0.01 < np.mean(found) < 0.06
    assert max(found) < 0.1


def test_it_grows_with_the_shift(space: KeySpace, key: Make) -> None:
    found = [
        seen(drift_of(space), key, rows(WINDOW, space.dim, 1, shift)).kl()
        for shift in (0, 0.5, 1, 2, 4)
    ]
    assert found == sorted(found)
    assert found[-1] > 1


def test_it_is_the_divergence_of_gaussians_along_the_leading_directions(
    space: KeySpace, key: Make
) -> None:
    reference, window = rows(3000, space.dim, 0), rows(WINDOW, space.dim, 1, 0.7)
    centred = reference - reference.mean(0)
    values, vectors = np.linalg.eigh(np.cov(centred.T, bias=True))
    leading = np.argsort(-values)[:DIRECTIONS]
    at = (window - reference.mean(0)) @ vectors[:, leading]
    expected = 0.0
    for values_of, spread in zip(at.T, values[leading], strict=True):
        ratio = values_of.var() / spread
        expected += 0.5 * (ratio + values_of.mean() ** 2 / spread - 1 - np.log(ratio))
    found = seen(Drift(reference, space), key, window).kl()
    assert found == pytest.approx(expected, rel=1e-3)


def test_only_the_window_counts_and_a_short_one_says_nothing(space: KeySpace, key: Make) -> None:
    drift = drift_of(space)
    seen(drift, key, rows(WINDOW - 1, space.dim, 1, 9.0))
    assert drift.kl() == 0
    seen(drift, key, rows(WINDOW, space.dim, 2))
    alone = seen(drift_of(space), key, rows(WINDOW, space.dim, 2))
    assert drift.kl() == pytest.approx(alone.kl())


def test_one_key_again_and_again_is_a_great_and_finite_drift(space: KeySpace, key: Make) -> None:
    drift = seen(drift_of(space), key, np.repeat(rows(1, space.dim, 1), WINDOW, axis=0))
    assert 10 < drift.kl() < 1000


def test_a_restored_drift_goes_on(space: KeySpace, key: Make) -> None:
    drift, again = drift_of(space), drift_of(space)
    seen(drift, key, rows(WINDOW + 40, space.dim, 1, 1.0))
    again.restore(json.loads(json.dumps(drift.state())))
    assert again.kl() == pytest.approx(drift.kl())
    more = rows(50, space.dim, 2)
    assert seen(again, key, more).kl() == pytest.approx(seen(drift, key, more).kl())
    empty = drift_of(space)
    empty.restore(json.loads(json.dumps(drift_of(space).state())))
    assert empty.kl() == 0


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (np.zeros((100, 5)), "reference has shape"),
        (rows(10, 16, 0), "give at least 32 keys"),
        (np.repeat(rows(1, 16, 0), 100, axis=0), "varies in fewer than 8 directions"),
        (rows(100, 16, 0) * (np.arange(16) < 7), "varies in fewer than 8 directions"),
        (np.full((100, 16), np.nan), "NaN"),
    ],
)
def test_a_reference_that_tells_nothing_is_refused(
    space: KeySpace, reference: np.ndarray, message: str
) -> None:
    with pytest.raises(AcceptanceError, match=message):
        Drift(reference, space)


def test_a_key_of_another_key_space_is_refused(space: KeySpace, key: Make) -> None:
    drift = drift_of(space)
    other = key(1, 0, replace(space, fingerprint="beef"))
    for refused in (drift.observe, drift.require_own):
        with pytest.raises(AcceptanceError, match="key space beef, the drift's reference of f00d"):
            refused(other)


class Drifted(Drift):
    """A drift of a given size."""

    def __init__(self, space: KeySpace, kl: float) -> None:
        super().__init__(rows(100, space.dim, 0), space)
        self._fixed = kl

    def kl(self) -> float:
        return self._fixed


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0, 0.85), (0.5, 0.6418), (1, 0.4572), (1.2, 0.42), (50, 0.42)],  # by hand, from SPEC C4
)
def test_the_rule_of_the_source_lowers_the_threshold(
    space: KeySpace, key: Make, kl: float, expected: float
) -> None:
    rule = DriftFollowing(Drifted(space, kl))
    assert rule.threshold(key(1), BOTH) == pytest.approx(expected, abs=1e-4)


def test_tightening_raises_it_up_to_1(space: KeySpace, key: Make) -> None:
    found = [
        DriftTightening(FixedThreshold(0.9), Drifted(space, kl)).threshold(key(1), BOTH)
        for kl in (0, 0.1, 1, 50)
    ]
    assert found[0] == 0.9
    assert found == sorted(found)
    assert found[2] == pytest.approx(1 - 0.1 * (1 - np.tanh(0.5)))
    assert found[3] == pytest.approx(1) and found[3] <= 1
    nothing = DriftTightening(FixedThreshold(None), Drifted(space, 0))
    assert nothing.threshold(key(1), BOTH) is None


def test_rules_learn_and_restore_the_drift(space: KeySpace, key: Make) -> None:
    def following() -> DriftFollowing:
        return DriftFollowing(drift_of(space))

    def tightening() -> DriftTightening:
        return DriftTightening(FixedThreshold(0.9), drift_of(space))

    for make, base in ((following, 0.85), (tightening, 0.9)):
        rule, again = make(), make()
        assert rule.threshold(key(1), BOTH) == base
        for vector in rows(WINDOW, space.dim, 1, 2.0):
            rule.observe(replace(key(0), vector=vector), BOTH)
        moved = rule.threshold(key(1), BOTH)
        assert moved is not None
        assert moved < base - 0.1 if make is following else moved > base + 0.01
        again.restore(json.loads(json.dumps(rule.state())))
        assert again.threshold(key(1), BOTH) == pytest.approx(moved)
        with pytest.raises(AcceptanceError, match="key space beef"):
            rule.threshold(key(1, 0, replace(space, fingerprint="beef")), BOTH)


@pytest.mark.parametrize(
    ("high", "low", "message"),
    [(1.5, 0.4, "high is 1.5"), (0.8, -2, "low is -2"), (0.4, 0.5, "low is 0.5, above high")],
)
def test_thresholds_that_are_none_are_refused(
    space: KeySpace, high: float, low: float, message: str
) -> None:
    with pytest.raises(AcceptanceError, match=message):
        DriftFollowing(drift_of(space), high, low)
