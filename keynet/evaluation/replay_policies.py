"""Replacement policies over the semantic cache: capacities, modalities, misaligned keys (C1-C3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keynet.cache.acceptance import Acceptance, FixedThreshold, PerModalities
from keynet.evaluation.closed_loop import SINGLE_PASS, calibrate, slices
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.replay_data import ReplayData
from keynet.evaluation.settings import JudgeSettings
from keynet.progress import progress_bar
from keynet.replay.cache_replay import CacheReplay, KeyedRequests, replay_cache
from keynet.replay.misaligned import WAYS, fused_keys
from keynet.replay.neighbours import Floats, Neighbours
from keynet.replay.semantic_trace import SemanticTrace, footprint
from keynet.replay.tally import Tally, tally

ORACLE = "oracle"
SEMANTIC = ("ssrp", "heat_graph")
BOTH = "image+text"


class Rule(NamedTuple):
    """The acceptance by modalities, and what is to be said of it."""

    acceptance: Acceptance
    values: dict[str, float]
    notes: tuple[str, ...]


class Replayed(NamedTuple):
    """One replay under one policy."""

    policy: str
    trace: SemanticTrace
    result: CacheReplay

    def tally(self, where: NDArray[np.bool_] | None = None) -> Tally:
        """Count its visits, or some of them."""
        return tally(
            self.trace, self.result.outcome, self.result.oracle, self.result.seconds, where
        )


def fit_rule(
    data: ReplayData, rows: Floats, settings: JudgeSettings, budget: float, both_only: bool = False
) -> Rule:
    """Return a threshold for each pattern of modalities, from the calibration split.

    Where none can be calibrated, equal keys alone are served: the very same request.

    Args:
        rows: float32 [N, D], keys of the calibration split.
        both_only: Leave out what has one modality alone.
    """
    labels = data.labels["calibration"]
    near = Neighbours.of(rows, labels.scope)
    index = {BOTH: slices(labels)[SINGLE_PASS]}
    for name in () if both_only else ("image", "text"):
        alone = np.flatnonzero(labels.modalities == name)
        if len(alone):
            index[name] = alone
    values, notes = dict[str, float](), []
    for name, at in index.items():
        found = calibrate(near, labels, at, settings, data.name)[budget]
        values[name] = 1.0 if found.value is None else min(1.0, found.value)
        if found.value is None:
            notes.append(f"{name}: equal keys alone are served; {found.reason}.")
    rules = {name: FixedThreshold(value) for name, value in values.items()}
    return Rule(PerModalities(rules), values, tuple(notes))


def replay_policies(
    pool: KeyedRequests,
    rule: Acceptance,
    traces: Sequence[SemanticTrace],
    policies: Sequence[str],
    entries: Sequence[int],
    what: str,
) -> dict[str, list[Replayed]]:
    """Replay each trace under each policy.

    Args:
        entries: Capacity for each trace.
        what: Said by the progress bar.
    """
    found: dict[str, list[Replayed]] = {name: [] for name in policies}
    every = [(name, at) for name in policies for at in range(len(traces))]
    for name, at in progress_bar(every, desc=what, unit="replay", leave=False):
        result = replay_cache(pool, traces[at], rule, policy=name, max_entries=entries[at])
        found[name].append(Replayed(name, traces[at], result))
    return found


def capacities(traces: Sequence[SemanticTrace], pool: KeyedRequests, share: float) -> list[int]:
    """Return so large a share of each trace's footprint, in entries, at least 1."""
    if not 0 < share <= 1:
        raise ValueError(f"capacity is {share}; expected a share of the footprint, up to 1")
    return [max(1, round(share * footprint(trace, pool.group))) for trace in traces]


def policy_records(sheet: Sheet, replays: Sequence[Replayed]) -> list[Record]:
    """Return the figures of one policy over several traces: means, the least and the greatest."""
    tallies = [one.tally() for one in replays]
    visits = sum(t.visits for t in tallies)
    false = [t.false_hit_rate for t in tallies]
    return [
        sheet.spread("hit_rate", [t.hit_rate for t in tallies], visits),
        sheet.spread(
            "false_hit_rate",
            [f for f in false if f is not None],
            sum(t.served for t in tallies),
            "" if any(f is not None for f in false) else "nothing served",
        ),
        sheet.spread("cost_saved", [t.cost_saved / t.cost_asked for t in tallies], visits),
        sheet.spread("bytes_moved", [t.bytes_moved / t.bytes_asked for t in tallies], visits),
        sheet.figure(
            "latency_ms_lookup",
            1e3 * float(np.mean([t.lookup_p50 for t in tallies])),
            high=1e3 * float(np.mean([t.lookup_p99 for t in tallies])),
            n=visits,
            unit="ms",
        ),
    ]


def oracle_pool(pool: KeyedRequests, seed: int = 0) -> KeyedRequests:
    """Return the same requests with one random key a group: what perfect keys would do."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((int(pool.group.max()) + 1, 64)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return KeyedRequests.of_rows(ORACLE, rows[pool.group], pool.group, pool.modalities)


def misaligned_pools(
    data: ReplayData, settings: JudgeSettings, budget: float
) -> Mapping[str, tuple[KeyedRequests, Rule]]:
    """Return requests with image and text keyed in each of ``WAYS``, and the rule of each.

    The seeds of both splits are one: the same rotation, but other halves and orders.
    """
    found = {}
    test, cal = data.keys("test"), data.keys("calibration")
    for way in WAYS:
        rule = fit_rule(
            data, fused_keys(cal["image"], cal["text"], way, 0), settings, budget, both_only=True
        )
        rows = fused_keys(test["image"], test["text"], way, 0)
        found[way] = (data.pool(way, rows), rule)
    return found


def semantic_verdict(records: Sequence[Record], policies: Sequence[str]) -> list[str]:
    """Say for SSRP and the heat graph whether they beat the best classic, subset by subset."""
    hits = {(r.subset, r.method): r.value for r in records if r.metric == "hit_rate"}
    said = []
    for name in SEMANTIC:
        if name not in policies:
            continue
        for subset in dict.fromkeys(subset for subset, _ in hits):
            classic = {
                p: hits[subset, p] or 0.0
                for p in policies
                if p not in SEMANTIC and (subset, p) in hits
            }
            if not classic or (subset, name) not in hits:
                continue
            best = max(classic, key=lambda p: classic[p])
            gain = 100 * ((hits[subset, name] or 0.0) - classic[best])
            word = "beats" if gain > 0 else "loses to" if gain < 0 else "equals"
            what = subset.partition(":")[0]  # without the name of the trace
            said.append(f"{what}: {name} {word} the best classic, {best}, {gain:+.1f} points.")
    return said
