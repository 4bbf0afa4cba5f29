"""Everything that is said of one method on one data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keynet.cache.threshold import Threshold
from keynet.evaluation.closed_loop import (
    COLD_VISITS,
    POPULARITY,
    SINGLE_PASS,
    calibrate,
    not_available,
    single_pass_order,
    single_pass_records,
    slices,
    zipf_orders,
    zipf_records,
)
from keynet.evaluation.cuts import OTHER_VENDOR, Cut, cut, subsets
from keynet.evaluation.fixed_store import (
    Served,
    chr_curve,
    fixed_store_records,
    hindsight_over_cuts,
    serve,
)
from keynet.evaluation.labels import Ints, Labels
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.retrieval import recall_at_1
from keynet.evaluation.savings import savings_records
from keynet.evaluation.settings import MAIN_BUDGET, JudgeSettings
from keynet.replay.closed_loop import FALSE_HIT, HIT, ReplayResult, replay
from keynet.replay.neighbours import Floats, Neighbours, check_keys, similarities

CURVE_POINTS = 400
WORST = 24
CUTS = 20  # of another vendor's drawings

Pair = tuple[int, int, float]


@dataclass(frozen=True)
class ReplayCurve:
    """Cumulative shares of one pass at the main budget.

    Args:
        visits: Visits so far.
        hits: Correct hits / visits so far.
        oracle: The oracle's hits / visits so far.
    """

    visits: list[int]
    hits: list[float]
    oracle: list[float]


@dataclass(frozen=True)
class Judgement:
    """What was found.

    Args:
        records: All figures, without the oracle's (see ``oracle_records``).
        coverage: Share of queries served, fixed store "all", strict to loose.
        precision: Correct among them.
        replay_curve: The single pass at the main budget; None without a threshold.
        worst_false_hits: (query, served, similarity), indices into the test split, of the single
            pass (of the fixed store where that has no threshold), most similar first.
        worst_misses: (query, its best equivalent in the store, similarity) of the fixed store,
            where something else was nearer, least similar first.
        thresholds: Of the fixed store "all" and of the single pass, for every budget.
    """

    records: list[Record]
    coverage: list[float]
    precision: list[float]
    replay_curve: ReplayCurve | None
    worst_false_hits: list[Pair]
    worst_misses: list[Pair]
    thresholds: list[Threshold]


def judge(
    method: str,
    bits: int | None,
    cal_keys: Floats,
    cal: Labels,
    test_keys: Floats,
    test: Labels,
    data: str,
    settings: JudgeSettings,
    *,
    disjoint_phrasings: bool = True,
) -> Judgement:
    """All figures of one method: thresholds from the calibration split, values from the test split.

    Args:
        method: Name in the records.
        bits: None for the float key.
        cal_keys: Unit rows [C, D]; their inner product is the similarity.
        test_keys: Unit rows [N, D].
        data: Name of the data set in the records.
        disjoint_phrasings: Whether a fixed store and its queries share no phrasing.
    """
    for name, keys, labels in (("calibration", cal_keys, cal), ("test", test_keys, test)):
        if len(keys) != len(labels):
            raise ValueError(f"{len(keys)} {name} keys for {len(labels)} labels; give one a label")
    cal_keys, test_keys = check_keys(cal_keys), check_keys(test_keys)

    def sheet(subset: str) -> Sheet:
        return Sheet(data, "test", subset, method, bits)

    records: list[Record] = []
    coverage, precision = np.zeros(0), np.zeros(0)
    worst_false: list[Pair] = []
    worst_misses: list[Pair] = []
    thresholds: list[Threshold] = []

    def cut_of(labels: Labels, subset: str, number: int = 0) -> Cut:
        return cut(
            labels,
            subset,
            settings.seed + number,
            disjoint_phrasings=disjoint_phrasings,
            store_share=settings.store_share,
        )

    for subset in subsets(test):
        parts = [cut_of(labels, subset) for labels in (cal, test)]
        if not len(parts[1].query):
            continue
        on_cal, on_test = serve(cal_keys, cal, parts[0]), serve(test_keys, test, parts[1])
        figures, fitted = fixed_store_records(sheet(subset), on_cal, on_test, settings.budgets)
        records += figures
        if subset == "all":
            thresholds += fitted.values()
            coverage, precision = chr_curve(on_test)
            worst_false = _worst_false_served(parts[1].query, on_test)
            worst_misses = _worst_misses(test_keys, test, parts[1], on_test)
        if subset.startswith(OTHER_VENDOR):
            stored, asked = subset.removeprefix(OTHER_VENDOR).split("->")
            records.append(
                recall_at_1(test_keys, test, sheet(subset), stored, asked, settings.seed)
            )
            others = (cut_of(test, subset, number) for number in range(1, CUTS))
            cuts = [on_test, *(serve(test_keys, test, other) for other in others)]
            records.append(hindsight_over_cuts(sheet(subset), cuts, MAIN_BUDGET))

    cal_near = Neighbours.of(cal_keys, cal.scope)
    test_near = Neighbours.of(test_keys, test.scope)
    cal_slices = slices(cal)
    curve, passes = None, dict[float, Threshold]()
    mains, why = dict[str, ReplayResult](), "no slice is in both splits"
    for subset, index in slices(test).items():
        if subset not in cal_slices:
            continue
        calibrated = calibrate(cal_near, cal, cal_slices[subset], settings, data)
        order = single_pass_order(index, settings)
        for budget, threshold in calibrated.items():
            main = budget == MAIN_BUDGET
            if threshold.value is None:
                why = threshold.reason if main else why
                records += not_available(sheet(subset), threshold, main)
                continue
            result = replay(test_near, test.group, order, threshold.value)
            records += single_pass_records(sheet(subset), test, result, budget, main)
            if main:
                mains[subset] = result
            if main and subset == SINGLE_PASS:
                curve, worst_false = _replay_curve(result), _worst_false_hits(result)
        if subset == SINGLE_PASS:
            passes = calibrated
    records += savings_records(sheet("all"), test, mains, MAIN_BUDGET, why)
    for subset in POPULARITY:
        orders = zipf_orders(test, subset, settings)
        for budget, threshold in passes.items():
            main = budget == MAIN_BUDGET
            if threshold.value is None:
                records += not_available(sheet(subset), threshold, main)
                continue
            results = [replay(test_near, test.group, o, threshold.value) for o in orders]
            records += zipf_records(sheet(subset), test, results, budget, main)
    keep = _thin(len(coverage))
    return Judgement(
        records,
        coverage[keep].tolist(),
        precision[keep].tolist(),
        curve,
        worst_false,
        worst_misses,
        [*thresholds, *passes.values()],
    )


def oracle_records(test: Labels, data: str, settings: JudgeSettings) -> list[Record]:
    """The oracle's hit rate in every replay, as method ``oracle``; it depends on no key."""
    # Without a threshold the replay always misses; what it carries is the oracle's outcome.
    blind = Neighbours.of(np.ones((len(test), 1), dtype=np.float32), test.scope)
    records: list[Record] = []

    def add(subset: str, orders: list[Ints]) -> None:
        sheet = Sheet(data, "test", subset, "oracle", None)
        found = [replay(blind, test.group, order, None).oracle for order in orders]
        n = len(found[0])
        rates = [float(hits.mean()) for hits in found]
        records.extend(
            sheet.spread(f"replay_hit_rate_at_{budget:g}", rates, n) for budget in settings.budgets
        )
        if n >= COLD_VISITS:
            cold = [float(hits[:COLD_VISITS].mean()) for hits in found]
            records.append(sheet.spread("hits_after_1000", cold, COLD_VISITS))

    for subset, index in slices(test).items():
        add(subset, [single_pass_order(index, settings)])
    for subset in POPULARITY:
        add(subset, zipf_orders(test, subset, settings))
    return records


def _thin(length: int) -> Ints:
    return np.unique(np.linspace(0, length - 1, min(length, CURVE_POINTS)).astype(np.int64))


def _replay_curve(result: ReplayResult) -> ReplayCurve:
    visits = np.arange(1, len(result.order) + 1)
    keep = _thin(len(visits))
    hits, oracle = np.cumsum(result.outcome == HIT) / visits, np.cumsum(result.oracle) / visits
    return ReplayCurve(visits[keep].tolist(), hits[keep].tolist(), oracle[keep].tolist())


def _worst_false_hits(result: ReplayResult) -> list[Pair]:
    at = np.flatnonzero(result.outcome == FALSE_HIT)
    at = at[np.argsort(-result.similarity[at], kind="stable")][:WORST]
    return _pairs(result.order[at], result.served[at], result.similarity[at])


def _worst_false_served(query: Ints, served: Served) -> list[Pair]:
    at = np.flatnonzero(~served.correct & (served.nearest >= 0))
    at = at[np.argsort(-served.similarity[at], kind="stable")][:WORST]
    return _pairs(query[at], served.nearest[at], served.similarity[at])


def _worst_misses(keys: Floats, labels: Labels, parts: Cut, served: Served) -> list[Pair]:
    """Answerable queries that another entry was nearest to."""
    found: list[Pair] = []
    for asked in parts.query[served.answerable & ~served.correct].tolist():
        candidates = parts.store[labels.group[parts.store] == labels.group[asked]]
        sims = similarities(keys[asked : asked + 1], keys[candidates])[0]
        best = int(sims.argmax())
        found.append((asked, int(candidates[best]), float(sims[best])))
    return sorted(found, key=lambda pair: pair[2])[:WORST]


def _pairs(query: Ints, served: Ints, similarity: NDArray[np.floating]) -> list[Pair]:
    return list(zip(query.tolist(), served.tolist(), similarity.tolist(), strict=True))
