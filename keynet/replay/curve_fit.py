"""A curve fitted to points by least squares, with the errors of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
STEPS = 500
CONVERGED = 1e-12  # relative gain of a step


@dataclass(frozen=True)
class CurveFit:
    """What was fitted.

    Args:
        values: float64 [P], the parameters.
        errors: float64 [P], their standard errors; NaN where the points do not determine them.
        r2: 1 - squared error / squared error of the best constant; negative when it is worse.
        n: Points.
    """

    values: Values
    errors: Values
    r2: float
    n: int


def fit_curve(
    curve: Callable[[Values, Values], Values],
    slopes: Callable[[Values, Values], Values],
    x: Values,
    y: Values,
    start: Sequence[float],
    weight: Values | None = None,
) -> CurveFit:
    """Fit parameters by Levenberg's and Marquardt's method.

    Args:
        curve: (parameters [P], x [N]) -> y [N].
        slopes: The same -> derivatives by the parameters, [N, P].
        x: float64 [N].
        y: float64 [N].
        start: Where the parameters begin.
        weight: float64 [N], how much a point counts; None is all alike.

    Raises:
        ValueError: There are no more points than parameters, or one is not finite.

    Source: Marquardt, SIAM J. 1963. Errors are White's (Econometrica 1980): they hold when points
    scatter unequally, as shares do.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    w = np.ones_like(y) if weight is None else np.asarray(weight, np.float64)
    at = np.array(start, np.float64)
    if len(x) <= len(at):
        raise ValueError(f"{len(x)} points for {len(at)} parameters; give more points")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("points are not finite; leave out what has no value")
    rest = y - curve(at, x)
    loss, damping = float(w @ rest**2), 1e-3
    for _ in range(STEPS):
        j = slopes(at, x)
        normal, pull = (j.T * w) @ j, (j.T * w) @ rest
        step = np.linalg.lstsq(normal + damping * np.diag(np.diag(normal) + 1e-300), pull)[0]
        with np.errstate(over="ignore", invalid="ignore"):
            tried = y - curve(at + step, x)
            new = float(w @ tried**2)
        if not new <= loss:
            damping *= 4
            if damping > 1e12:
                break
            continue
        gained, at, rest, loss = loss - new, at + step, tried, new
        damping /= 3
        if gained <= CONVERGED * loss or loss == 0:
            break
    j = slopes(at, x)
    bread = np.linalg.pinv((j.T * w) @ j)
    spread = bread @ ((j.T * (w * rest) ** 2) @ j) @ bread
    undetermined = np.diag((j.T * w) @ j) <= 1e-12 * len(x)
    errors = np.where(undetermined, np.nan, np.sqrt(np.maximum(0.0, np.diag(spread))))
    around = float(w @ (y - np.average(y, weights=w)) ** 2)
    return CurveFit(at, errors, 1 - loss / around if around > 0 else 0.0, len(x))
