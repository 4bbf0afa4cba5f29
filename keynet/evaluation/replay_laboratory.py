"""The commands of the replay laboratory: each replays traces and says what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from keynet.cache.acceptance import FixedThreshold
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.replay_analyses import (
    SHARDS,
    cold_start_records,
    counted_keys,
    counting_records,
    difference_record,
    entropy_records,
    fitted,
    joined_matches,
    sharded,
)
from keynet.evaluation.replay_data import ReplayData
from keynet.evaluation.replay_findings import Findings, method_grid
from keynet.evaluation.replay_page import worst_false_hits
from keynet.evaluation.replay_plots import (
    cold_start_plot,
    entropy_plot,
    hits_plot,
    root_cause_plot,
)
from keynet.evaluation.replay_policies import (
    BOTH,
    ORACLE,
    Rule,
    capacities,
    fit_rule,
    misaligned_pools,
    oracle_pool,
    policy_records,
    replay_policies,
    semantic_verdict,
)
from keynet.evaluation.replay_records import (
    oracle_strategy_records,
    ratio_record,
    strategy_grid,
    strategy_records,
)
from keynet.evaluation.replay_strategies import (
    ALIGNED,
    Limits,
    StrategyReplay,
    StrategyRunner,
    encode_seconds,
    fit_limits,
)
from keynet.evaluation.settings import JudgeSettings
from keynet.replay.cache_replay import CacheReplay, replay_cache
from keynet.replay.closed_loop import HIT, MISS
from keynet.replay.match_entropy import fit_pollution, matches
from keynet.replay.misaligned import WAYS
from keynet.replay.semantic_trace import SemanticTrace

MIXED = "mixed"
TRAFFIC: Mapping[str, Mapping[str, Mapping[str, float]]] = {  # shares of objects by modalities
    "image": {"shares": {"image": 1.0}},
    "text": {"shares": {"text": 1.0}},
    BOTH: {"shares": {BOTH: 1.0}},
    MIXED: {"shares": {"image": 1.0, "text": 1.0, BOTH: 1.0}},
    "drifting": {"shares": {BOTH: 1.0}, "shares_at_end": {"image": 1.0}},
}
MIDDLE_CAPACITY = 0.05  # of the footprint


@dataclass
class Laboratory:
    """What the commands share.

    Args:
        data: Requests, labels and keys.
        make: (number of a trace, shares of the mapping) -> the trace.
        traces: How many.
        settings: Of the calibration.
        budget: False hits / served.
        strategies: Names.
        policies: Names.
        shares: Capacities, of the footprint.
        place: Name of the public trace.
        seed: Of bootstraps and shards.
    """

    data: ReplayData
    make: Callable[[int, Mapping[str, Mapping[str, float]]], SemanticTrace]
    traces: int
    settings: JudgeSettings
    budget: float
    strategies: Sequence[str]
    policies: Sequence[str]
    shares: Sequence[float]
    place: str
    seed: int = 0
    _limits: dict[str, Limits] = field(default_factory=dict)
    _rule: Rule | None = None

    def sheet(self, what: str, method: str) -> Sheet:
        """Return where the records of a method go."""
        return Sheet(self.data.name, "test", f"{what}:{self.place}", method, None)

    def made(self, traffic: str) -> list[SemanticTrace]:
        """Return all traces of one of ``TRAFFIC``."""
        return [self.make(number, TRAFFIC[traffic]) for number in range(self.traces)]

    def limits(self, name: str) -> Limits:
        """Return from which similarity a strategy serves; calibrated once."""
        if name not in self._limits:
            self._limits[name] = fit_limits(self.data, name, self.settings, self.budget)
        return self._limits[name]

    def rule(self) -> Rule:
        """Return the acceptance of aligned keys by modalities; calibrated once."""
        if self._rule is None:
            rows = self.data.rows(ALIGNED, "calibration")
            self._rule = fit_rule(self.data, rows, self.settings, self.budget)
        return self._rule

    def aligned(self, traces: Sequence[SemanticTrace]) -> list[CacheReplay]:
        """Replay traces of images with texts under aligned keys, boundless."""
        rule = FixedThreshold(self.limits(ALIGNED).value)
        return [replay_cache(self.data.pool(ALIGNED), trace, rule) for trace in traces]

    def title(self, what: str) -> str:
        """Return the title of a table."""
        return f"{self.data.name}, test, {self.place}: {what}"


def strategies(lab: Laboratory) -> Findings:
    """Ways to key a request, side by side on the same traces (K2)."""
    traces, runner = lab.made(BOTH), StrategyRunner(lab.data)
    seconds = encode_seconds(lab.data, lab.strategies)
    replays: dict[str, list[StrategyReplay]] = {}
    found, costs = Findings(), [trace.cost for trace in traces]
    served = []
    for name in lab.strategies:
        limits = lab.limits(name)
        replays[name] = [runner.replay(name, trace, limits) for trace in traces]
        found.records += strategy_records(
            lab.sheet("strategies", name), replays[name], costs, limits, seconds[name], lab.budget
        )
        served.append(_said(name, limits))
    first = replays[lab.strategies[0]]
    found.records += oracle_strategy_records(lab.sheet("strategies", ORACLE), first)
    for untold in (False, True):
        sheet = lab.sheet("strategies", ALIGNED)
        ratio = ratio_record(sheet, replays, lab.budget, lab.seed, untold)
        found.records += [] if ratio is None else [ratio]
    notes = [*_trace_notes(traces), "Served from: " + ", ".join(served) + "."]
    found.grids.append(strategy_grid(found.records, lab.title("strategies"), notes))
    outcomes = {name: [one.outcome for one in many] for name, many in replays.items()}
    outcomes[ORACLE] = [np.where(one.oracle, HIT, MISS).astype(np.int8) for one in first]
    found.plots.append(("Correct hits over requests, by strategy", hits_plot(outcomes, ALIGNED)))
    if ALIGNED in replays:
        one = lab.aligned(traces[:1])[0]
        found.pairs += worst_false_hits(
            lab.data.requests["test"], lab.data.labels["test"],
            traces[0].request, one.outcome, one.served, one.similarity,
        )  # fmt: skip
    return found


def policies(lab: Laboratory) -> Findings:
    """Replacement policies at several capacities, SSRP and the heat graph beside the classics."""
    traces, pool, rule = lab.made(BOTH), lab.data.pool(ALIGNED), lab.rule()
    perfect, found, columns = oracle_pool(pool), Findings(), []
    for share in lab.shares:
        what, entries = f"policies at {100 * share:g} %", capacities(traces, pool, share)
        replays = replay_policies(pool, rule.acceptance, traces, lab.policies, entries, what)
        for name, many in replays.items():
            found.records += policy_records(lab.sheet(what, name), many)
        know = replay_policies(perfect, FixedThreshold(1.0), traces, ["lru"], entries, what)
        found.records += policy_records(lab.sheet(what, ORACLE), know["lru"])
        subset, size = lab.sheet(what, "").subset, f"{np.mean(entries):.0f} entries"
        columns += [
            ((f"{100 * share:g} %", size, "hits"), subset, "hit_rate"),
            ((f"{100 * share:g} %", size, "false"), subset, "false_hit_rate"),
            ((f"{100 * share:g} %", size, "bytes moved"), subset, "bytes_moved"),
        ]
    notes = [
        *semantic_verdict(found.records, lab.policies),
        "Capacities are shares of the trace's distinct groups. oracle: one key a group, under LRU.",
        *_trace_notes(traces),
    ]
    title = lab.title("replacement policies, aligned keys")
    found.grids.append(method_grid(found.records, title, columns, notes))
    return found


def modalities(lab: Laboratory) -> Findings:
    """Single-modality against mixed and drifting traffic, and misaligned keys, by policy (C1)."""
    pool, rule, found = lab.data.pool(ALIGNED), lab.rule(), Findings()
    labels, columns = lab.data.labels["test"], []
    mixed = lab.made(MIXED)
    entries = capacities(mixed, pool, MIDDLE_CAPACITY)
    for name in TRAFFIC:
        traces, what = lab.made(name), f"traffic {name}"
        replays = replay_policies(pool, rule.acceptance, traces, lab.policies, entries, what)
        for policy, many in replays.items():
            found.records += policy_records(lab.sheet(what, policy), many)
        subset = lab.sheet(what, "").subset
        columns.append(((name, "hits"), subset, "hit_rate"))
        columns.append(((name, "false"), subset, "false_hit_rate"))
        if name == MIXED:
            picture = root_cause_plot(replays, labels.modalities)
            found.plots.append(("Root causes: mixed traffic by load, modality, policy", picture))
    size = f"{np.mean(entries):.0f} entries, {100 * MIDDLE_CAPACITY:g} % of mixed traffic's groups"
    notes = [f"Capacity: {size}, for all. drifting: images with texts become images alone."]
    notes += [*rule.notes, *_trace_notes(mixed)]
    found.grids.append(method_grid(found.records, lab.title("traffic by modality"), columns, notes))
    found.add(_misaligned(lab))
    return found


def _misaligned(lab: Laboratory) -> Findings:
    found, columns, traces = Findings(), [], lab.made(BOTH)
    notes = [f"{way}: {what}." for way, what in WAYS.items()]
    for way, (pool, rule) in misaligned_pools(lab.data, lab.settings, lab.budget).items():
        what, entries = f"keys {way}", capacities(traces, pool, MIDDLE_CAPACITY)
        replays = replay_policies(pool, rule.acceptance, traces, lab.policies, entries, what)
        for policy, many in replays.items():
            found.records += policy_records(lab.sheet(what, policy), many)
        subset = lab.sheet(what, "").subset
        columns.append(((way.replace("_", " "), "hits"), subset, "hit_rate"))
        columns.append(((way.replace("_", " "), "false"), subset, "false_hit_rate"))
        notes.append(f"{way}: serves from {rule.values[BOTH]:.4f}.")
        notes += rule.notes
    title = lab.title("misaligned keys, each with a threshold of its own")
    found.grids.append(method_grid(found.records, title, columns, notes))
    return found


def cold_start(lab: Laboratory) -> Findings:
    """How fast a cold cache warms up, and A/B of key structures (C7)."""
    traces, runner, found = lab.made(BOTH), StrategyRunner(lab.data), Findings()
    apart = [sharded(trace, lab.seed + at) for at, trace in enumerate(traces)]
    hits = {
        ALIGNED: [one.outcome == HIT for one in lab.aligned(traces)],
        f"{ALIGNED}, {SHARDS} shards": [one.outcome == HIT for one in lab.aligned(apart)],
        "exact": [
            runner.replay("exact", trace, lab.limits("exact")).outcome == HIT for trace in traces
        ],
    }
    curves = {}
    for name, many in hits.items():
        curves[name] = fitted(traces, many)
        found.records += cold_start_records(lab.sheet("cold_start", name), *curves[name])
        if name != ALIGNED:
            sheet = lab.sheet("cold_start", name)
            found.records.append(difference_record(sheet, traces, hits[ALIGNED], many, ALIGNED))
    subset = lab.sheet("cold_start", "").subset
    columns = [
        (("level", "L"), subset, "cold_start_level"),
        (("speed", "k, 1/s"), subset, "cold_start_speed"),
        (("middle", "t0, s"), subset, "cold_start_middle"),
        (("R2",), subset, "cold_start_r2"),
        (("hits over", ALIGNED), subset, f"hit_rate_over:{ALIGNED}"),
    ]
    notes = ["L / (1 + exp(-k (t - t0))) over windows of time; shares in percent."]
    notes += [_interval(r) for r in found.records if r.low is not None]
    title = lab.title("cold start and A/B of key structures")
    found.grids.append(method_grid(found.records, title, columns, notes))
    found.plots.append(("Cold start: hit rate over time", cold_start_plot(curves)))
    return found


def entropy(lab: Laboratory) -> Findings:
    """Match entropy against pollution (C6)."""
    traces, pool, found = lab.made(BOTH), lab.data.pool(ALIGNED), Findings()
    parts = [
        matches(pool.vectors, pool.group, pool.modalities, trace.request, one.outcome == MISS)
        for trace, one in zip(traces, lab.aligned(traces), strict=True)
    ]
    every = joined_matches(parts)
    fixed, free = fit_pollution(every), fit_pollution(every, None)
    found.records += entropy_records(lab.sheet("entropy", ALIGNED), every, fixed, free)
    subset = lab.sheet("entropy", "").subset
    columns = [
        (("entropy", "nats"), subset, "match_entropy"),
        (("wrong", "%"), subset, "wrong_matches"),
        (("a", "from 2.1"), subset, "pollution_a"),
        (("R2", "from 2.1"), subset, "pollution_r2"),
        (("R2 of bins", "from 2.1"), subset, "pollution_r2_bins"),
        (("a", "free"), subset, "pollution_a_free"),
        (("onset", "free"), subset, "pollution_onset_free"),
        (("R2", "free"), subset, "pollution_r2_free"),
        (("R2 of bins", "free"), subset, "pollution_r2_bins_free"),
    ]
    notes = [
        "wrong: matches (the nearest entry, whatever its similarity) that are not equivalent, of "
        "all visits to a filled cache; entropy: of the softmax over all its entries.",
        "R2 is against a constant, which has 0: over single matches, and over shares of wrong ones "
        "in 12 bins of entropy.",
        *(_interval(r) for r in found.records if r.low is not None),
    ]
    title = lab.title("match entropy against pollution")
    found.grids.append(method_grid(found.records, title, columns, notes))
    found.plots.append(("Wrong matches over match entropy", entropy_plot(every, fixed, free)))
    return found


def counting(lab: Laboratory) -> Findings:
    """How counts of strings split a resource (C5)."""
    traces, found = lab.made(BOTH), Findings()
    keys = counted_keys(lab.data, traces, [one.served for one in lab.aligned(traces)])
    sheet = lab.sheet("counting", "")
    found.records += counting_records(sheet, lab.data.labels["test"], traces, keys)
    columns = [
        (("keys of", "a resource"), sheet.subset, "keys_of_a_resource"),
        (("underrated", "%"), sheet.subset, "underrated"),
        (("counted for", "others too, %"), sheet.subset, "counted_for_others_too"),
    ]
    notes = [
        "The 100 most visited groups. underrated: 1 - visits of the most visited key / visits.",
        "strings: image bytes and text; ids: picture's name and text; entries: aligned keys.",
    ]
    title = lab.title("semantic counting")
    found.grids.append(method_grid(found.records, title, columns, notes))
    return found


COMMANDS: Mapping[str, Callable[[Laboratory], Findings]] = {
    "strategies": strategies,
    "policies": policies,
    "modalities": modalities,
    "cold_start": cold_start,
    "entropy": entropy,
    "counting": counting,
}


def _said(name: str, limits: Limits) -> str:
    if limits.value is None:
        return f"{name} never"
    if limits.text is not None:
        return f"{name} {limits.value:.4f} and {limits.text:.4f}"
    return f"{name} {limits.value:.4f}" if limits.value < 1 else f"{name} equal"


def _trace_notes(traces: Sequence[SemanticTrace]) -> list[str]:
    visits = np.mean([len(trace) for trace in traces])
    again = np.mean([trace.verbatim.mean() for trace in traces])
    said = "1 trace of" if len(traces) == 1 else f"{len(traces)} traces of on average"
    return [
        f"{said} {visits:,.0f} visits; in {100 * again:.1f} % the very same request came before, "
        "since its group had no other left."
    ]


def _interval(record: Record) -> str:
    unit = {"share": " %", "number": ""}.get(record.unit, f" {record.unit}")
    found = (record.value or 0.0, record.low or 0.0, record.high or 0.0)
    scale = 100 if record.unit == "share" else 1
    value, low, high = (f"{scale * one:.3g}" for one in found)
    what = record.metric.replace("_", " ").replace(":", " ")
    said = f", {record.note}" if record.note else ""
    return f"{record.method}, {what}: {value} ({low} to {high}){unit}{said}"
