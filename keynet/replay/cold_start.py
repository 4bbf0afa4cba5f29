"""How a cold cache warms up: the hit rate over time and the logistic curve fitted to it (C7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keynet.replay.curve_fit import Values, fit_curve

WINDOWS = 40


class Windows(NamedTuple):
    """Shares of hits by time.

    Args:
        time: float64 [W], middle of each window, seconds since the first visit.
        rate: float64 [W], hits / visits in it.
        visits: float64 [W].
    """

    time: Values
    rate: Values
    visits: Values


@dataclass(frozen=True)
class ColdStart:
    """L / (1 + exp(-k (t - t0))), with standard errors.

    Args:
        level: L, the share of hits in the end.
        speed: k, per second.
        middle: t0, seconds at which half of the level is reached.
        r2: Of the fit, against a constant.
    """

    level: float
    speed: float
    middle: float
    level_error: float
    speed_error: float
    middle_error: float
    r2: float

    def at(self, seconds: Values | float) -> Values:
        """Return the share of hits at a time."""
        return _logistic(np.array([self.level, self.speed, self.middle]), np.asarray(seconds))


def windows(time: Values, hit: NDArray[np.bool_], count: int = WINDOWS) -> Windows:
    """Return shares of hits in windows of equal length that have visits.

    Args:
        time: float64 [V], seconds, in order.
        hit: bool [V].
        count: Windows from the first visit to the last.

    Raises:
        ValueError: All visits come at one time.
    """
    since = np.asarray(time, np.float64) - time[0]
    if not since[-1] > 0:
        raise ValueError("all visits come at one moment; a hit rate over time needs times")
    length = since[-1] / count
    number = np.minimum((since / length).astype(np.int64), count - 1)
    visits = np.bincount(number, minlength=count).astype(np.float64)
    hits = np.bincount(number, weights=hit.astype(np.float64), minlength=count)
    there = visits > 0
    middle = (np.arange(count) + 0.5) * length
    return Windows(middle[there], hits[there] / visits[there], visits[there])


def fit_cold_start(found: Windows) -> ColdStart:
    """Fit the logistic curve to shares of hits, each window weighed by its visits.

    A cache that starts warm, or never warms up, has no t0: its error is then large or NaN.

    Raises:
        ValueError: There are fewer than four windows.

    Source: A2.5 of the specification.
    """
    time, rate, visits = found
    level = float(max(rate[-max(1, len(rate) // 4) :].mean(), 1e-3))
    reached = np.flatnonzero(rate >= level / 2)
    middle = float(time[reached[0]]) if len(reached) else float(time[-1])
    start = (level, 4 / max(float(time[-1]) / 4, 1e-9), middle)
    fit = fit_curve(_logistic, _slopes, time, rate, start, visits)
    (level, speed, middle), (of_level, of_speed, of_middle) = fit.values, fit.errors
    return ColdStart(
        float(level), float(speed), float(middle),
        float(of_level), float(of_speed), float(of_middle), fit.r2,
    )  # fmt: skip


def _logistic(parameters: Values, time: Values) -> Values:
    level, speed, middle = parameters
    found: Values = level * _sigmoid(speed * (time - middle))
    return found


def _slopes(parameters: Values, time: Values) -> Values:
    level, speed, middle = parameters
    s = _sigmoid(speed * (time - middle))
    steep = level * s * (1 - s)
    return np.stack([s, steep * (time - middle), -steep * speed], axis=1)


def _sigmoid(z: Values) -> Values:
    return 0.5 * (1 + np.tanh(0.5 * z))
