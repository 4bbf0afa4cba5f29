"""The similarity from which a cache may serve, calibrated for a budget of false hits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FIXED_STORE = "fixed_store"
CLOSED_LOOP = "closed_loop"


@dataclass(frozen=True)
class Threshold:
    """A calibrated threshold and what it holds for.

    Args:
        value: Serve from this similarity on; None serves nothing (a cache with it always misses).
        kind: ``fixed_store`` or ``closed_loop``; one is not valid for the other.
        budget: Share of false hits among served that it is calibrated for.
        confidence: 1 - delta for a fixed store; None in closed loop, where nothing is guaranteed.
        n: Calibration queries (fixed store) or visits of one replay (closed loop).
        data: Name of the calibration data.
        key_space: Fingerprint of the key space.
        reason: One line that says why ``value`` is None, else empty.
    """

    value: float | None
    kind: str
    budget: float
    confidence: float | None
    n: int
    data: str = ""
    key_space: str = ""
    reason: str = ""


def served_needed(budget: float, delta: float = 0.05) -> int:
    """Least number of served queries, all correct, that shows a false-hit rate within budget."""
    _check_share("budget", budget)
    _check_share("delta", delta)
    return math.ceil(math.log(delta) / math.log1p(-budget))


def fit_fixed_store(
    similarity: ArrayLike,
    correct: ArrayLike,
    budget: float,
    delta: float = 0.05,
    *,
    data: str = "",
    key_space: str = "",
) -> Threshold:
    """Loosest threshold with P(false hits / served > budget) <= delta, queries being independent.

    Thresholds are tested from strict to loose, each by the binomial tail of its false hits, from
    the first that serves enough to pass at all; the first failure ends the sequence, which is why
    no correction for the many tests is due. Equal similarities are served together.

    Args:
        similarity: [n], each query's similarity to its nearest stored key.
        correct: bool [n], whether that key is equivalent.
        budget: False hits / served, in (0, 1).
        delta: Accepted chance of a threshold that breaks the budget, in (0, 1).

    Source: Angelopoulos et al., Learn then Test (2021), fixed-sequence testing.
    """
    sims = np.asarray(similarity, dtype=np.float64)
    right = np.asarray(correct, dtype=bool)
    if sims.ndim != 1 or sims.shape != right.shape:
        raise ValueError(
            f"similarity {sims.shape} and correct {right.shape} differ; give two vectors [n]"
        )
    if np.isnan(sims).any():
        raise ValueError("similarity contains NaN; use -inf for a query without a candidate")
    needed = served_needed(budget, delta)
    kept = np.isfinite(sims)
    order = np.argsort(-sims[kept], kind="stable")
    ranked = sims[kept][order]
    false_hits = np.cumsum(~right[kept][order])
    ends = np.flatnonzero(np.append(ranked[1:] < ranked[:-1], len(ranked) > 0)[: len(ranked)])
    log_factorial = _log_factorial(len(ranked))
    value, tested = None, 0
    for end in ends:
        served = int(end) + 1
        if served < needed:
            continue
        tested += 1
        if _binomial_tail(int(false_hits[end]), served, budget, log_factorial) > delta:
            break
        value = float(ranked[end])
    reason = ""
    if not tested:
        reason = f"needs {needed} served queries for a budget of {budget:g}, has {len(ranked)}"
    elif value is None:
        reason = f"the {needed} most similar queries already break the budget of {budget:g}"
    return Threshold(
        value, FIXED_STORE, budget, 1 - delta, len(sims), data, key_space, reason=reason
    )


def fit_closed_loop(
    replay: Callable[[int, float], tuple[int, int]],
    candidates: ArrayLike,
    budget: float,
    visits: int,
    *,
    subsamples: int = 12,
    refine: int = 4,
    data: str = "",
    key_space: str = "",
) -> Threshold:
    """Loosest threshold at which, and at every stricter candidate, all replays keep the budget.

    A candidate at which a replay serves fewer than ``served_needed`` cannot fail, for so few say
    nothing of the rate: two look-alikes at the top would end the search at every hit it could
    have. Nor can it be the result unless it keeps the budget.

    Args:
        replay: (subsample, threshold) -> (served, false hits) of one closed-loop replay. It is
            called again with the same arguments for another budget, so cache it.
        candidates: Similarities to try.
        budget: False hits / served, in (0, 1).
        visits: Visits of one replay; too few for the budget give no threshold.
        subsamples: Number of replays, each over its own random part of the calibration data.
        refine: Bisections between the last candidate that passed and the first that failed.
    """
    needed = served_needed(budget)

    def threshold(value: float | None, reason: str = "") -> Threshold:
        return Threshold(value, CLOSED_LOOP, budget, None, visits, data, key_space, reason)

    def verdict(value: float) -> bool | None:
        undecided = False
        for subsample in range(subsamples):
            served, false_hits = replay(subsample, value)
            if false_hits > budget * served:
                if served >= needed:
                    return False
                undecided = True
        return None if undecided else True

    if visits < needed:
        return threshold(None, f"needs {needed} visits for a budget of {budget:g}, has {visits}")
    ranked = np.unique(np.asarray(candidates, dtype=np.float64))[::-1]
    if not np.isfinite(ranked).all():
        raise ValueError("candidates contain NaN or infinity; give finite similarities")
    good, bad = None, None
    for value in ranked.tolist():
        passed = verdict(value)
        if passed is False:
            bad = value
            break
        if passed:
            good = value
    if good is None:
        return threshold(None, f"no threshold tried keeps the budget of {budget:g}")
    if bad is not None:
        for _ in range(refine):
            middle = (good + bad) / 2
            if verdict(middle):
                good = middle
            else:
                bad = middle
    return threshold(good)


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value}; give a share between 0 and 1")


def _log_factorial(n: int) -> NDArray[np.float64]:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1, dtype=np.float64)))])


def _binomial_tail(k: int, n: int, p: float, log_factorial: NDArray[np.float64]) -> float:
    """P(Binomial(n, p) <= k)."""
    i: NDArray[Any] = np.arange(k + 1)
    log_mass = (
        log_factorial[n]
        - log_factorial[i]
        - log_factorial[n - i]
        + i * math.log(p)
        + (n - i) * math.log1p(-p)
    )
    return float(np.exp(log_mass).sum())
