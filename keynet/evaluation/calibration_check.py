"""Whether calibrated thresholds keep their budget on requests that they were not calibrated on.

Held-out requests are cut in two at random, by what their pictures show. A threshold is calibrated
on one half, by the rule that serves and by two that must not, and the other half is replayed in
closed loop: how often is the budget broken, and which share of the hits of the best threshold in
hindsight is reached?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keynet.cache.threshold import Counts, fit_fixed_store, served_needed
from keynet.evaluation.closed_loop import calibrate
from keynet.evaluation.cuts import cut, units
from keynet.evaluation.fixed_store import serve
from keynet.evaluation.labels import Ints, Labels
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.settings import JudgeSettings
from keynet.replay.closed_loop import count_served
from keynet.replay.neighbours import Floats, Neighbours

CLOSED_LOOP, NAIVE, FIXED_STORE, HINDSIGHT = "closed_loop", "naive", "fixed_store", "hindsight"
RULES = (CLOSED_LOOP, NAIVE, FIXED_STORE)
Row = Mapping[str, Mapping[str, Any]]  # a split's Outcome, by rule
GRID = 60  # thresholds tried by the naive choice and in hindsight
HOPELESS = 10.0  # times the budget: nothing looser is tried in hindsight


@dataclass(frozen=True)
class Outcome:
    """What a threshold did to the half that it was not calibrated on.

    Args:
        threshold: None where the rule found none: nothing is served.
        served: Visits that were served.
        false_hits: Of them, those served another group's response.
    """

    threshold: float | None
    served: int = 0
    false_hits: int = 0

    @property
    def hits(self) -> int:
        """Correct ones."""
        return self.served - self.false_hits

    def keeps(self, budget: float) -> bool:
        """Return whether no more than the budget of the served was wrong."""
        return self.false_hits <= budget * self.served


@dataclass(frozen=True)
class Pool:
    """Held-out requests with image and text, and their keys.

    Args:
        keys: Unit rows [N, D].
        labels: Of them.
        neighbours: Of the keys.
        grid: Thresholds worth trying, descending.
        disjoint_phrasings: Whether a fixed store and its queries share no phrasing.
    """

    keys: Floats
    labels: Labels
    neighbours: Neighbours
    grid: NDArray[np.float64]
    disjoint_phrasings: bool

    @staticmethod
    def of(keys: Floats, labels: Labels, disjoint_phrasings: bool = True) -> Pool:
        """Return the pool of the rows of ``keys`` [N, D]."""
        neighbours = Neighbours.of(keys, labels.scope, length=256)
        grid = neighbours.candidates(labels.group, count=GRID)
        return Pool(keys, labels, neighbours, grid, disjoint_phrasings)


def halves(labels: Labels, seed: int, number: int) -> tuple[Ints, Ints]:
    """Return the requests of a random half of the entities, and those of the others.

    By picture, or text, where no entity is named.

    Raises:
        ValueError: There is one entity only.
    """
    shown = np.where(labels.entity >= 0, labels.entity + len(labels), units(labels))
    names = np.unique(shown)
    if len(names) < 2:
        raise ValueError(f"{len(names)} entity cannot be cut in two; take more data")
    rng = np.random.default_rng([seed, number])
    first = np.isin(shown, rng.permutation(names)[: len(names) // 2])
    return np.flatnonzero(first), np.flatnonzero(~first)


def check_split(pool: Pool, settings: JudgeSettings, budget: float, number: int) -> Row:
    """Return each rule's ``Outcome`` on one split, and the best in hindsight, as JSON.

    ``naive`` takes the loosest threshold at which one pass over the calibration half keeps the
    budget; ``fixed_store`` the one fitted to independent queries on a store of that half.

    Args:
        pool: What is split.
        settings: Of the calibration; its seed is that of the splits.
        budget: False hits / served.
        number: Of the split.
    """
    labels, neighbours = pool.labels, pool.neighbours
    own, other = halves(labels, settings.seed, number)
    seeds = np.random.default_rng([settings.seed, number, 1]).integers(2**31, size=3).tolist()
    settings = replace(settings, seed=seeds[0])
    thresholds: dict[str, float | None] = {}
    thresholds[CLOSED_LOOP] = calibrate(neighbours, labels, own, settings)[budget].value
    order = np.random.default_rng(seeds[1]).permutation(own)
    passes = _passes(pool, order, budget)
    kept = [value for value, one in passes if one.keeps(budget)]
    thresholds[NAIVE] = min(kept, default=None)
    half = labels.take(own)
    parts = cut(
        half, "all", seeds[0],
        disjoint_phrasings=pool.disjoint_phrasings, store_share=settings.store_share,
    )  # fmt: skip
    served = serve(pool.keys[own], half, parts)
    thresholds[FIXED_STORE] = fit_fixed_store(served.similarity, served.correct, budget).value
    order = np.random.default_rng(seeds[2]).permutation(other)
    found = {name: _outcome(pool, order, value) for name, value in thresholds.items()}
    tried = [one for _, one in _passes(pool, order, budget)] + list(found.values())
    within = [one for one in tried if one.keeps(budget)]
    found[HINDSIGHT] = max(within, key=lambda one: one.hits, default=Outcome(None))
    return {name: asdict(one) for name, one in found.items()}


def check_records(sheet: Sheet, rows: Sequence[Row], budget: float) -> list[Record]:
    """Return how often each rule broke the budget, and what it served.

    ``broken`` is the share of splits, with its exact binomial interval: splits of one pool are not
    independent, so that it describes this pool. ``hits_of_hindsight`` is the mean over splits, with
    the least and the greatest.

    Args:
        sheet: Its method is replaced by each rule's name.
        rows: Of ``check_split``.
        budget: False hits / served.
    """
    records = []
    for rule in (*RULES, HINDSIGHT):
        mine = replace(sheet, method=rule)
        found = [Outcome(**row[rule]) for row in rows]
        best = [Outcome(**row[HINDSIGHT]).hits for row in rows]
        broken = sum(not one.keeps(budget) for one in found)
        shares = [one.hits / most for one, most in zip(found, best, strict=True) if most]
        false = [one.false_hits / one.served for one in found if one.served]
        records += [
            mine.share(f"broken_at_{budget:g}", broken, len(rows)),
            mine.spread(f"hits_of_hindsight_at_{budget:g}", shares, len(rows)),
            mine.spread(f"replay_false_hit_rate_at_{budget:g}", false, len(rows)),
            mine.share("without_threshold", sum(o.threshold is None for o in found), len(rows)),
        ]
    return records


def _passes(pool: Pool, order: Ints, budget: float) -> list[tuple[float, Outcome]]:
    """What each threshold of the grid does to a pass, strict to loose, until it is hopeless."""
    found = []
    for value in pool.grid.tolist():
        one = _outcome(pool, order, value)
        found.append((value, one))
        # Where little is served, a few look-alikes are a large share of it.
        if one.served >= served_needed(budget) and not one.keeps(HOPELESS * budget):
            break
    return found


def _outcome(pool: Pool, order: Ints, threshold: float | None) -> Outcome:
    if threshold is None:
        return Outcome(None)
    group = pool.labels.group
    counts: Counts = count_served(pool.neighbours, group, group, order, threshold)
    return Outcome(threshold, counts.served, counts.false_hits)
