from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import curve_fit

from keynet.replay.cold_start import Windows, fit_cold_start, windows
from keynet.replay.curve_fit import fit_curve


def logistic(t: np.ndarray, level: float, speed: float, middle: float) -> np.ndarray:
    return level / (1 + np.exp(-speed * (t - middle)))


def simulated(seed: int, visits: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    time = np.sort(rng.uniform(0, 600, visits))
    return time, rng.random(visits) < logistic(time, 0.7, 0.02, 186.0)


def test_windows_hold_every_visit_once() -> None:
    time, hit = simulated(0)
    found = windows(time, hit, 30)
    assert found.visits.sum() == len(time)
    assert (found.rate * found.visits).sum() == pytest.approx(hit.sum())
    with pytest.raises(ValueError, match="one moment"):
        windows(np.zeros(5), np.ones(5, bool))


def test_the_curve_is_found_with_its_errors() -> None:
    inside, found, said = np.zeros(3), [], []
    for seed in range(20):
        fit = fit_cold_start(windows(*simulated(seed)))
        assert fit.r2 > 0.95
        values = np.array([fit.level, fit.speed, fit.middle])
        errors = np.array([fit.level_error, fit.speed_error, fit.middle_error])
        found.append(values)
        said.append(errors)
        inside += np.abs(values - [0.7, 0.02, 186.0]) < 2.5 * errors
        assert (errors < [0.05, 0.005, 15]).all()
    assert (inside >= 17).all()
    # What is said is about how much the fits of other samples scatter.
    ratio = np.mean(said, axis=0) / np.std(found, axis=0, ddof=1)
    assert (ratio > 0.5).all() and (ratio < 2).all()


def test_it_agrees_with_scipy() -> None:
    found = windows(*simulated(3))
    fit = fit_cold_start(found)
    expected, _ = curve_fit(
        logistic, found.time, found.rate, (0.6, 0.03, 150.0), sigma=found.visits**-0.5
    )
    assert [fit.level, fit.speed, fit.middle] == pytest.approx(expected.tolist(), rel=1e-3)
    assert fit.at(fit.middle) == pytest.approx(fit.level / 2)


def test_too_few_windows() -> None:
    few = np.array([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="3 points for 3 parameters"):
        fit_cold_start(Windows(few, few / 10, few))


def test_a_constant_hit_rate_has_no_middle() -> None:
    time = np.arange(40.0)
    fit = fit_cold_start(Windows(time, np.full(40, 0.5), np.ones(40)))
    assert fit.at(30.0) == pytest.approx(0.5, abs=1e-3)
    # t0 is anything early enough: its error says nothing smaller than the time that was seen, or
    # it lies before the first window.
    assert np.isnan(fit.middle_error) or fit.middle < time[1] or fit.middle_error > 40


def test_r2_is_against_a_constant() -> None:
    x = np.arange(10.0)

    def curve(p: np.ndarray, x: np.ndarray) -> np.ndarray:
        return p[0] * x

    def slopes(p: np.ndarray, x: np.ndarray) -> np.ndarray:
        return x[:, None]

    assert fit_curve(curve, slopes, x, 3 * x, [0.0]).r2 == pytest.approx(1)
    assert fit_curve(curve, slopes, x, 10 - x, [0.0]).r2 < 0
    with pytest.raises(ValueError, match="not finite"):
        fit_curve(curve, slopes, x, x * np.nan, [0.0])
