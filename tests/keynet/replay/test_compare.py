from __future__ import annotations

import numpy as np
import pytest

from keynet.replay.compare import compare

UNIT = np.repeat(np.arange(200), 5)


def test_a_real_difference_is_decided_and_none_is_not() -> None:
    rng = np.random.default_rng(0)
    a = rng.random(1000) < 0.4
    b = a | (rng.random(1000) < 0.2)
    found = compare(a, b, UNIT)
    assert found.decided and found.low < found.value < found.high
    assert found.value == pytest.approx(b.mean() - a.mean())
    back = compare(b, a, UNIT)
    assert back.value == pytest.approx(-found.value) and back.high < 0
    assert compare(a, a, UNIT) == (0, 0, 0) and not compare(a, a, UNIT).decided


def test_visits_of_one_object_are_not_independent() -> None:
    rng = np.random.default_rng(1)
    a = np.zeros(1000, bool)
    b = np.repeat(rng.random(200) < 0.3, 5)  # an object hits always or never
    by_object, by_visit = compare(a, b, UNIT), compare(a, b, np.arange(1000))
    assert by_object.high - by_object.low > 1.8 * (by_visit.high - by_visit.low)


def test_the_interval_covers() -> None:
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        gain = np.repeat(rng.random(200) < 0.3, 5)
        found = compare(np.zeros(1000, bool), gain, UNIT, seed, rounds=300)
        covered += found.low <= 0.3 <= found.high
    assert covered >= 51


def test_visits_must_pair() -> None:
    with pytest.raises(ValueError, match="2 and 3 visits of 3 objects"):
        compare(np.ones(2, bool), np.ones(3, bool), np.arange(3))
