"""The similarity from which a cache may serve, calibrated for a budget of false hits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FIXED_STORE = "fixed_store"
CLOSED_LOOP = "closed_loop"
# 95 % of a normal distribution lie below 1.645 deviations. Two samples differ by the square root of
# two times as much as one from the mean: those calibrated on, and those that will be served.
Z = 1.645 * math.sqrt(2)


@dataclass(frozen=True)
class Threshold:
    """A calibrated threshold and what it holds for.

    Args:
        value: Serve from this similarity on; None serves nothing (a cache with it always misses).
        kind: ``fixed_store`` or ``closed_loop``; one is not valid for the other.
        budget: Share of false hits among served that it is calibrated for.
        confidence: 1 - delta for a fixed store; None in closed loop, where nothing is guaranteed.
        n: Calibration queries (fixed store) or visits served in one whole pass (closed loop).
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


class Counts(NamedTuple):
    """What one closed-loop replay served.

    Args:
        served: Visits that were served.
        false_hits: Of them, those served another group's response.
        distinct: Distinct questions about distinct things among them; visits of one in other
            encodings and phrasings say little more than one visit.
    """

    served: int
    false_hits: int
    distinct: int


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
    """Threshold with P(false hits / served > budget) <= delta, queries being independent.

    Thresholds are tested from strict to loose, each by the binomial tail of its false hits, from
    the first that serves enough to pass at all; the first failure ends the sequence, which is why
    no correction for the many tests is due. Taken is the strictest that serves all correct hits of
    the loosest that passes: between them lie false hits alone. Equal similarities are served
    together.

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
    value, tested, most = None, 0, -1
    for end in ends:
        served = int(end) + 1
        if served < needed:
            continue
        tested += 1
        if _binomial_tail(int(false_hits[end]), served, budget, log_factorial) > delta:
            break
        if served - false_hits[end] > most:
            value, most = float(ranked[end]), served - int(false_hits[end])
    reason = ""
    if not tested:
        reason = f"needs {needed} served queries for a budget of {budget:g}, has {len(ranked)}"
    elif value is None:
        reason = f"the {needed} most similar queries already break the budget of {budget:g}"
    return Threshold(
        value, FIXED_STORE, budget, 1 - delta, len(sims), data, key_space, reason=reason
    )


def fit_closed_loop(
    replay: Callable[[int, float], Counts],
    candidates: ArrayLike,
    budget: float,
    *,
    wholes: int,
    halves: int,
    refine: int = 4,
    data: str = "",
    key_space: str = "",
) -> Threshold:
    """The threshold of most correct hits that keeps the budget with a margin.

    The mean rate of false hits of whole passes must stay ``Z`` standard deviations below the
    budget. How the rate varies about its mean from sample to sample is told by random halves of
    the calibration data: drawn without replacement, they vary as whole samples do. A half fills a
    smaller store, in which there is less to be mistaken for, so their deviation is scaled by the
    ratio of the mean rates; it is at least that of ``distinct`` independent queries. Nothing is
    guaranteed: hits thin the store, false hits cluster, and the rate is nearly monotone at best.
    The loosest such threshold need not be the one of most hits: the looser, the longer an entry
    that was stored wrongly is served.

    A threshold at which a whole pass serves fewer than ``served_needed`` distinct questions is not
    taken: so few could all be right by luck.

    Args:
        replay: (number, threshold) -> what one closed-loop replay served; numbers below ``wholes``
            are passes over all calibration data, the others over random halves. It is called again
            with the same arguments for another budget, so cache it.
        candidates: Similarities to try.
        budget: False hits / served, in (0, 1).
        wholes: Number of whole passes.
        halves: Number of halves, at least 2.
        refine: Bisections between the candidate taken and the next looser one.

    Source: the delete-half jackknife, Shao and Wu, Annals of Statistics 1989.
    """
    if wholes < 1 or halves < 2:
        raise ValueError(f"wholes={wholes}, halves={halves}; give at least 1 and 2")
    needed, most = served_needed(budget), 0

    def rates(numbers: range, value: float) -> NDArray[np.float64]:
        found = [replay(number, value) for number in numbers]
        return np.array([f.false_hits / max(f.served, 1) for f in found])

    def verdict(value: float) -> bool:
        nonlocal most
        distinct, total = sys.maxsize, 0.0
        for number in range(wholes):
            found = replay(number, value)
            distinct = min(distinct, found.distinct)
            total += found.false_hits / max(found.served, 1)
            # What the passes that are left will say no longer matters.
            if distinct < needed or total > budget * wholes:
                break
        most = max(most, distinct)
        rate = total / wholes
        if distinct < needed or rate > budget:
            return False
        half = rates(range(wholes, wholes + halves), value)
        of_half = float(half.mean())
        growth = max(1.0, rate / of_half) if of_half else 1.0
        least = math.sqrt(rate * (1 - rate) / distinct)
        return rate + Z * max(float(half.std(ddof=1)) * growth, least) <= budget

    ranked = np.unique(np.asarray(candidates, dtype=np.float64)).tolist()
    if not np.isfinite(ranked).all():
        raise ValueError("candidates contain NaN or infinity; give finite similarities")
    # From loose to strict: where little is served, two look-alikes are a large share of it, so that
    # a strict threshold may fail below which many hold.
    at = next((i for i, candidate in enumerate(ranked) if verdict(candidate)), None)
    value = None if at is None else ranked[at]
    if at:
        lower = ranked[at - 1]
        for _ in range(refine):
            between = (value + lower) / 2
            if verdict(between):
                value = between
            else:
                lower = between
    if value is not None:
        kept = [value, *(v for v in ranked if v > value)]
        best = max(kept, key=lambda v: replay(0, v).served - replay(0, v).false_hits)
        value = best if verdict(best) else value
    reason, visits = "", replay(0, value).served if value is not None else 0
    if value is None:
        reason = f"no threshold tried keeps the budget of {budget:g}"
        if most < needed:
            reason = f"needs {needed} distinct questions served for {budget:g}, had {most}"
    return Threshold(value, CLOSED_LOOP, budget, None, visits, data, key_space, reason)


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
