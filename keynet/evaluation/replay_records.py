"""Records of replays of a trace, and the tables that are drawn from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from keynet.evaluation.closed_loop import COLD_VISITS
from keynet.evaluation.fixed_store import OVER_BUDGET
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.replay_strategies import ALIGNED, STRATEGIES, Limits, StrategyReplay
from keynet.evaluation.table import Figures, Grid, Row
from keynet.replay.closed_loop import FALSE_HIT, HIT

RATIO = "ratio:best_baseline"
RATIO_UNTOLD = "ratio:best_baseline_untold"  # of those that are not told the picture's name
COLUMNS = (
    (("first 1,000", "hits"), "hits_after_1000"),
    (("first 1,000", "false"), "false_hits_after_1000"),
    (("whole", "hits"), "hit_rate"),
    (("whole", "false"), "false_hit_rate"),
    (("whole", "of oracle"), "hits_of_oracle"),
    (("saved", "cost"), "cost_saved"),
    (("added ms", "key"), "latency_ms_key"),
    (("added ms", "lookup"), "latency_ms_lookup"),
)


def strategy_records(
    sheet: Sheet,
    replays: Sequence[StrategyReplay],
    costs: Sequence[NDArray[np.float64]],
    limits: Limits,
    key_seconds: NDArray[np.float64],
    budget: float,
) -> list[Record]:
    """Return what a strategy did to several traces: means, with the least and the greatest.

    Args:
        sheet: Its method is the strategy.
        replays: One a trace.
        costs: float64 [V], of the visits of each.
        limits: From which similarity it served.
        key_seconds: Of making the key of one request, several times.
        budget: False hits / served that it was calibrated for.
    """
    visits = sum(len(r.outcome) for r in replays)
    note = limits.reason if limits.value is None else ""

    def spread(metric: str, values: Sequence[float | None]) -> Record:
        there = [value for value in values if value is not None]
        return sheet.spread(metric, there, visits, note or ("" if there else "nothing served"))

    def false(outcome: NDArray[np.int8]) -> float | None:
        served = int((outcome > 0).sum())
        return int((outcome == FALSE_HIT).sum()) / served if served else None

    def of_served(metric: str, values: Sequence[float | None]) -> Record:
        found = spread(metric, values)
        over = found.value is not None and found.value > budget
        return replace(found, note=OVER_BUDGET) if over else found

    cold = [r.outcome[:COLD_VISITS] for r in replays if len(r.outcome) >= COLD_VISITS]
    hits = [(r.outcome == HIT) for r in replays]
    records = [
        spread("hits_after_1000", [float((o == HIT).mean()) for o in cold]),
        of_served("false_hits_after_1000", [false(o) for o in cold]),
        spread("hit_rate", [float(h.mean()) for h in hits]),
        of_served("false_hit_rate", [false(r.outcome) for r in replays]),
        spread(
            "hits_of_oracle",
            [float(h.sum() / max(1, r.oracle.sum())) for h, r in zip(hits, replays, strict=True)],
        ),
        spread(
            "cost_saved",
            [float(c[h].sum() / c.sum()) for h, c in zip(hits, costs, strict=True)],
        ),
    ]
    lookups = np.concatenate([r.seconds for r in replays])
    for metric, seconds in (("latency_ms_key", key_seconds), ("latency_ms_lookup", lookups)):
        low, mid, high = (1e3 * np.quantile(seconds, (0.05, 0.5, 0.99))).tolist()
        records.append(sheet.figure(metric, mid, low, high, len(seconds), unit="ms"))
    return records


def oracle_strategy_records(sheet: Sheet, replays: Sequence[StrategyReplay]) -> list[Record]:
    """Return what a boundless cache that knows the groups would have hit."""
    visits = sum(len(r.outcome) for r in replays)
    cold = [float(r.oracle[:COLD_VISITS].mean()) for r in replays if len(r.oracle) >= COLD_VISITS]
    return [
        sheet.spread("hits_after_1000", cold, visits),
        sheet.spread("hit_rate", [float(r.oracle.mean()) for r in replays], visits),
    ]


def ratio_record(
    sheet: Sheet,
    replays: Mapping[str, Sequence[StrategyReplay]],
    budget: float,
    seed: int = 0,
    untold: bool = False,
) -> Record | None:
    """Return correct hits in the first 1,000 visits over those of the best baseline in budget.

    A baseline is in budget when its false hits in all traces together are; the interval (95 %) is
    bootstrapped over traces, the baseline being the same in all. None where there is no such
    baseline with hits, or the key model was not replayed.

    Args:
        untold: Leave out ``ids``, which is told what no gateway sees: the picture's name.
    """
    if ALIGNED not in replays:
        return None
    if untold:
        replays = {name: found for name, found in replays.items() if name != "ids"}

    def counts(name: str, outcome: int) -> NDArray[np.int64]:
        return np.array([(r.outcome[:COLD_VISITS] == outcome).sum() for r in replays[name]])

    hits = {name: counts(name, HIT) for name in replays}
    false = {name: counts(name, FALSE_HIT) for name in replays}
    inside = [
        name
        for name in replays
        if name != ALIGNED and hits[name].sum()
        and false[name].sum() <= budget * (false[name].sum() + hits[name].sum())
    ]  # fmt: skip
    if not inside:
        return None
    best = max(inside, key=lambda name: int(hits[name].sum()))
    drawn = np.random.default_rng(seed).integers(len(hits[best]), size=(2000, len(hits[best])))
    ratios = hits[ALIGNED][drawn].sum(1) / np.maximum(1, hits[best][drawn].sum(1))
    low, high = np.quantile(ratios, (0.025, 0.975)).tolist()
    value = float(hits[ALIGNED].sum() / hits[best].sum())
    note = f"best baseline within {100 * budget:g} % false hits: {best}"
    metric = RATIO_UNTOLD if untold else RATIO
    return sheet.figure(metric, value, low, high, len(hits[best]), note, "ratio")


def strategy_grid(records: Sequence[Record], title: str, notes: Sequence[str] = ()) -> Grid:
    """Return one row a strategy."""
    figures = Figures(records)
    methods = dict.fromkeys((r.data, r.split, r.subset, (r.method, r.bits)) for r in records)
    rows = []
    for where in methods:
        name = where[3][0]
        kind = "trained" if name == ALIGNED else "oracle" if name == "oracle" else "baseline"
        cells = [figures.cell(where, metric) for _, metric in COLUMNS]
        over = [
            (record := figures.by_key.get((where, metric))) is not None
            and record.note == OVER_BUDGET
            for _, metric in COLUMNS
        ]
        marked = (replace(c, over=broken) for c, broken in zip(cells, over, strict=True))
        rows.append(Row(name, kind, tuple(marked)))
    legend = [f"{name}: {what}." for name, what in STRATEGIES.items()]
    ratios = [
        f"Correct hits of {ALIGNED} over the best baseline's, first 1,000: {r.value:.2f} "
        f"({r.low:.2f} to {r.high:.2f}); {r.note}."
        for r in records
        if r.metric in (RATIO, RATIO_UNTOLD)
    ]
    said = (*ratios, "!: more false hits than the budget.", *notes)
    return Grid(title, tuple(heading for heading, _ in COLUMNS), tuple(rows), (*said, *legend))
