"""Two ways to key the same visits, and whether their difference is more than chance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keynet.replay.neighbours import Ints

ROUNDS = 2000


class Difference(NamedTuple):
    """Share of hits of B less that of A, with its interval of 95 %."""

    value: float
    low: float
    high: float

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def compare(
    a: NDArray[np.bool_], b: NDArray[np.bool_], unit: Ints, seed: int = 0, rounds: int = ROUNDS
) -> Difference:
    """Return how much more often B hits than A on the same visits, bootstrapped by object.

    All visits of an object are drawn together, since they are not independent. What is drawn are
    outcomes: that the objects of one replay compete for the same cache is not undone.

    Args:
        a: bool [V], hits of A.
        b: bool [V], hits of B.
        unit: int64 [V], object of each visit.
        seed: Of the bootstrap.
        rounds: Of the bootstrap.

    Raises:
        ValueError: The visits are not the same number, or none.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 13.3 (percentile
    interval).
    """
    if not len(a) == len(b) == len(unit) or not len(a):
        raise ValueError(f"{len(a)} and {len(b)} visits of {len(unit)} objects; give the same")
    number = np.unique(unit, return_inverse=True)[1]
    gain = np.bincount(number, weights=b.astype(np.float64) - a)
    visits = np.bincount(number).astype(np.float64)
    rng = np.random.default_rng(seed)
    drawn = np.empty(rounds)
    for at in range(rounds):
        times = np.bincount(rng.integers(len(gain), size=len(gain)), minlength=len(gain))
        drawn[at] = (times @ gain) / (times @ visits)
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist()
    return Difference(float(gain.sum() / visits.sum()), low, high)
