"""Hit rate at a false-hit budget over a fixed store: the headline figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from keynet.cache.threshold import Threshold, fit_fixed_store, served_needed
from keynet.evaluation.cuts import Cut
from keynet.evaluation.labels import Ints, Labels
from keynet.evaluation.records import Record, Sheet
from keynet.replay.neighbours import Floats, similarities

OVER_BUDGET = "over budget"


@dataclass(frozen=True)
class Served:
    """What a fixed store would serve to each query.

    Args:
        nearest: int64 [Q], request in the store; -1 where none has the query's scope.
        similarity: float64 [Q]; -inf where nearest is -1.
        correct: bool [Q], whether it is equivalent.
        answerable: bool [Q], whether the store holds an equivalent.
    """

    nearest: Ints
    similarity: NDArray[np.float64]
    correct: NDArray[np.bool_]
    answerable: NDArray[np.bool_]


def serve(keys: Floats, labels: Labels, cut: Cut) -> Served:
    """Nearest stored request of each query, among those of the same scope."""
    nearest = np.full(len(cut.query), -1, dtype=np.int64)
    similarity = np.full(len(cut.query), -np.inf)
    for scope in np.unique(labels.scope[cut.query]):
        at = np.flatnonzero(labels.scope[cut.query] == scope)
        store = cut.store[labels.scope[cut.store] == scope]
        if len(store):
            sims = similarities(keys[cut.query[at]], keys[store])
            best = sims.argmax(axis=1)
            nearest[at] = store[best]
            similarity[at] = sims[np.arange(len(at)), best]
    correct = (nearest >= 0) & (labels.group[nearest] == labels.group[cut.query])
    return Served(nearest, similarity, correct, cut.answerable)


def chr_curve(served: Served) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of queries served and precision among them, at each threshold from strict to loose.

    Queries whose scope has nothing in the store are never served: coverage ends below 1.
    """
    order = np.argsort(-served.similarity, kind="stable")
    order = order[np.isfinite(served.similarity[order])]
    sims = served.similarity[order]
    count = np.flatnonzero(np.append(sims[1:] < sims[:-1], True)) + 1 if len(sims) else np.zeros(0)
    correct = np.cumsum(served.correct[order])[count.astype(np.int64) - 1]
    return count / max(len(served.similarity), 1), correct / np.maximum(count, 1)


def fixed_store_records(
    sheet: Sheet, cal: Served, test: Served, budgets: Sequence[float]
) -> tuple[list[Record], dict[float, Threshold]]:
    """Figures of one subset: thresholds fitted on ``cal``, everything else measured on ``test``.

    ``hindsight_hit_rate_at_x`` takes the loosest threshold that keeps x on the test queries
    themselves: an upper bound that describes, not a figure that can be promised.
    """
    records: list[Record] = []
    thresholds = {}
    for budget in budgets:
        thresholds[budget] = fit(cal, budget, sheet.data)
        records += _at_budget(sheet, test, budget, thresholds[budget])
    answerable = int(test.answerable.sum())
    for budget in budgets:
        records.append(
            sheet.figure(
                f"hindsight_hit_rate_at_{budget:g}",
                _hindsight_hit_rate(test, budget),
                n=answerable,
                note="" if answerable else "no answerable query",
            )
        )
    area = area_under(test)
    records.append(
        sheet.figure(
            "p_chr_auc", area, n=len(test.nearest), note="no query" if area is None else ""
        )
    )
    return records, thresholds


def fit(cal: Served, budget: float, data: str) -> Threshold:
    """Return the threshold fitted on calibration queries."""
    threshold = fit_fixed_store(cal.similarity, cal.correct, budget, data=data)
    needed, has = served_needed(budget), int(cal.answerable.sum())
    if threshold.value is None and has < needed:
        reason = f"needs {needed} answerable calibration queries for {budget:g}, has {has}"
        threshold = replace(threshold, reason=reason)
    return threshold


def area_under(served: Served) -> float | None:
    """Return the area under ``chr_curve``; None without a query."""
    coverage, precision = chr_curve(served)
    return float((np.diff(coverage, prepend=0.0) * precision).sum()) if len(coverage) else None


def _at_budget(sheet: Sheet, test: Served, budget: float, threshold: Threshold) -> list[Record]:
    hit_rate, false_rate = f"hit_rate_at_{budget:g}", f"false_hit_rate_at_{budget:g}"
    if threshold.value is None:
        return [
            sheet.figure(hit_rate, None, note=threshold.reason),
            sheet.figure(false_rate, None, note=threshold.reason),
        ]
    taken = test.similarity >= threshold.value
    hits, num_served = int((taken & test.correct).sum()), int(taken.sum())
    over = OVER_BUDGET if num_served - hits > budget * num_served else ""
    return [
        sheet.share(hit_rate, hits, int(test.answerable.sum()), over),
        sheet.share(
            false_rate, num_served - hits, num_served, over if num_served else "nothing served"
        ),
    ]


def hindsight_over_cuts(sheet: Sheet, cuts: Sequence[Served], budget: float) -> Record:
    """Return the mean of the cuts' ``hindsight_hit_rate_at_x``, with the least and the greatest.

    Where little can be served, the first wrong answer decides, and one cut says next to nothing.
    """
    rates = [_hindsight_hit_rate(served, budget) for served in cuts]
    found = [rate for rate in rates if rate is not None]
    return sheet.spread(f"hindsight_hit_rate_over_cuts_at_{budget:g}", found, len(found))


def _hindsight_hit_rate(served: Served, budget: float) -> float | None:
    answerable = int(served.answerable.sum())
    hits = int((served.correct & (served.similarity >= hindsight(served, budget))).sum())
    return hits / answerable if answerable else None


def hindsight(served: Served, budget: float) -> float:
    """Return the loosest threshold at which these queries keep the budget; inf: none does."""
    order = np.argsort(-served.similarity, kind="stable")
    sims = served.similarity[order]
    false_hits = np.cumsum(~served.correct[order])
    ends = np.append(sims[1:] < sims[:-1], True) if len(sims) else np.zeros(0, dtype=bool)
    kept = ends & np.isfinite(sims) & (false_hits <= budget * np.arange(1, len(sims) + 1))
    return float(sims[kept][-1]) if kept.any() else np.inf
