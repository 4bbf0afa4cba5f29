"""Records of what one replay says of keys: cold start, A/B, match entropy, semantic counting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from keynet.evaluation.baselines import image_digest, text_digest
from keynet.evaluation.labels import Ints, Labels
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.replay_data import ReplayData
from keynet.replay.cold_start import ColdStart, Windows, fit_cold_start, windows
from keynet.replay.compare import Difference, compare
from keynet.replay.counting import semantic_counting
from keynet.replay.curve_fit import CurveFit
from keynet.replay.match_entropy import Matches, r2_of_bins
from keynet.replay.semantic_trace import SemanticTrace

SHARDS = 8
Z = 1.96  # 95 % of a normal distribution lie within
Hits = NDArray[np.bool_]


def sharded(trace: SemanticTrace, seed: int, shards: int = SHARDS) -> SemanticTrace:
    """Return the trace with a shard of its user in every scope, drawn for each visit.

    What the specification's `user_v2:{shard}:{id}` does to responses that all users could share.
    """
    drawn = np.random.default_rng(seed).integers(shards, size=len(trace)).astype(str)
    return replace(trace, scope=np.char.add(np.char.add(trace.scope, "shard "), drawn))


def joined(traces: Sequence[SemanticTrace], hits: Sequence[Hits]) -> tuple[np.ndarray, Hits]:
    """Return the visits of several traces that begin at one moment, in order of time."""
    time = np.concatenate([trace.time - trace.time[0] for trace in traces])
    order = np.argsort(time, kind="stable")
    return time[order], np.concatenate(hits)[order]


def cold_start_records(sheet: Sheet, found: Windows, fit: ColdStart) -> list[Record]:
    """Return the fitted logistic curve of a method, each parameter with its interval (95 %)."""
    n = int(found.visits.sum())

    def figure(metric: str, value: float, error: float, unit: str) -> Record:
        if not np.isfinite(error):
            return sheet.figure(metric, None, n=n, note="the windows do not determine it")
        return sheet.figure(metric, value, value - Z * error, value + Z * error, n, unit=unit)

    return [
        figure("cold_start_level", fit.level, fit.level_error, "share"),
        figure("cold_start_speed", fit.speed, fit.speed_error, "1/s"),
        figure("cold_start_middle", fit.middle, fit.middle_error, "s"),
        sheet.figure("cold_start_r2", fit.r2, n=n, unit="number"),
    ]


def fitted(traces: Sequence[SemanticTrace], hits: Sequence[Hits]) -> tuple[Windows, ColdStart]:
    """Return the hit rate over time of several cold starts together, and its curve."""
    found = windows(*joined(traces, hits))
    return found, fit_cold_start(found)


def difference_record(
    sheet: Sheet, traces: Sequence[SemanticTrace], a: Sequence[Hits], b: Sequence[Hits], name: str
) -> Record:
    """Return how much more of the visits the sheet's method hits than another on the same traces.

    Args:
        a: bool [V] of each trace, hits of the other.
        b: The same, hits of the sheet's method.
        name: Of the other.
    """
    # Objects are numbered anew in each trace.
    unit = np.concatenate([trace.object * len(traces) + at for at, trace in enumerate(traces)])
    found: Difference = compare(np.concatenate(a), np.concatenate(b), unit)
    word = "decided" if found.decided else "undecided: the interval holds 0"
    return sheet.figure(f"hit_rate_over:{name}", *found, len(unit), word, "share")


def entropy_records(sheet: Sheet, found: Matches, fixed: CurveFit, free: CurveFit) -> list[Record]:
    """Return match entropy, wrong matches and the fitted pollution curves."""
    n = len(found.entropy)
    a, error = float(fixed.values[0]), float(fixed.errors[0])
    free_a, onset = free.values.tolist()
    spread = free.errors.tolist()
    low, median, high = np.quantile(found.entropy, (0.25, 0.5, 0.75)).tolist()
    return [
        sheet.figure("match_entropy", median, low, high, n, unit="nats"),
        sheet.share("wrong_matches", int(found.wrong.sum()), n),
        sheet.figure("pollution_a", a, a - Z * error, a + Z * error, n, unit="number"),
        sheet.figure("pollution_r2", fixed.r2, n=n, unit="number"),
        sheet.figure("pollution_r2_bins", r2_of_bins(found, fixed), n=n, unit="number"),
        sheet.figure(
            "pollution_a_free", free_a, free_a - Z * spread[0], free_a + Z * spread[0], n,
            unit="number",
        ),
        sheet.figure(
            "pollution_onset_free", onset, onset - Z * spread[1], onset + Z * spread[1], n,
            unit="nats",
        ),
        sheet.figure("pollution_r2_free", free.r2, n=n, unit="number"),
        sheet.figure("pollution_r2_bins_free", r2_of_bins(found, free, None), n=n, unit="number"),
    ]  # fmt: skip


def joined_matches(parts: Sequence[Matches]) -> Matches:
    """Return the matches of several replays as one."""
    return Matches(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def counted_keys(
    data: ReplayData, traces: Sequence[SemanticTrace], served: Sequence[Ints]
) -> Mapping[str, Ints]:
    """Return what each way of counting takes as the key of each visit, traces one after another.

    ``strings`` are the verbatim image and text, ``ids`` the picture's name and the text, ``text``
    the text alone, ``entries`` what the cache stores: a hit counts for the entry that it is served.
    """
    labels, requests = data.labels["test"], data.requests["test"]
    texts = _numbered([text_digest(r.text) for r in requests])
    strings = _numbered([image_digest(r.image) + text_digest(r.text) for r in requests])
    ids = np.unique(np.stack([labels.picture, texts]), axis=1, return_inverse=True)[1]
    order = np.concatenate([trace.request for trace in traces])
    entry = np.concatenate(
        [np.where(s >= 0, s, t.request) for t, s in zip(traces, served, strict=True)]
    )
    # A trace is a cache of its own: entries of two caches are two keys, as all others are.
    number = np.concatenate([np.full(len(t), at) for at, t in enumerate(traces)])
    found = {"strings": strings[order], "ids": ids.reshape(-1)[order], "text": texts[order]}
    found["entries"] = entry
    return {name: keys * len(traces) + number for name, keys in found.items()}


def counting_records(
    sheet: Sheet, labels: Labels, traces: Sequence[SemanticTrace], keys: Mapping[str, Ints]
) -> list[Record]:
    """Return how each way of counting underrates the 100 most visited resources."""
    number = np.concatenate([np.full(len(t), at) for at, t in enumerate(traces)])
    order = np.concatenate([trace.request for trace in traces])
    resource = labels.group[order] * len(traces) + number
    records = []
    for name, key in keys.items():
        found, mine = semantic_counting(resource, key), replace(sheet, method=name)
        n = found.visits
        records += [
            mine.figure("keys_of_a_resource", found.keys, n=n, unit="number"),
            mine.figure("underrated", found.underrated, n=n),
            mine.figure("counted_for_others_too", found.mixed, n=n),
        ]
    return records


def _numbered(digests: Sequence[bytes]) -> Ints:
    number: dict[bytes, int] = {}
    return np.array([number.setdefault(d, len(number)) for d in digests], np.int64)
