"""What rules of acceptance do when the requests change under them (C4).

A cache is asked in closed loop, first requests like those its threshold was calibrated on, then
others: another vendor's drawings, or degraded pictures or texts. A rule may follow the drift of the
keys, or audits of its hits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from keynet.cache.acceptance import Acceptance, FixedThreshold
from keynet.cache.cache import SemanticCache
from keynet.cache.drift import Drift
from keynet.cache.drift_rules import HIGH, DriftFollowing, DriftTightening
from keynet.cache.entry import Hit
from keynet.cache.recalibrating import Recalibrating
from keynet.evaluation.closed_loop import calibrate
from keynet.evaluation.labels import Ints, Labels
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.settings import MAIN_BUDGET, JudgeSettings
from keynet.replay.neighbours import Floats, Neighbours
from keynet.types import Key, KeySpace

Codes = NDArray[np.uint8]

BOTH = "image+text"
HALVES = ("before", "after")
AUDIT_SHARE = 0.2
SCOPE = "0" * 32


@dataclass(frozen=True)
class Change:
    """A stream that changes half way.

    Args:
        keys: float32 [N, D], unit rows.
        codes: uint8 [N, K/8].
        labels: Of the N requests.
        calibration: Requests to calibrate on, and to measure drift from.
        halves: Requests asked, before and after the change.
        names: Of what is asked.
    """

    keys: Floats
    codes: Codes
    labels: Labels
    calibration: Ints
    halves: tuple[Ints, Ints]
    names: tuple[str, str]


class Spaced:
    """Stands for the key model of a cache that is only given keys."""

    def __init__(self, space: KeySpace) -> None:
        self.space = space

    def encode(self, requests: object) -> Key:
        raise NotImplementedError("keys are given, not made")


def vendor_change(
    keys: Floats, codes: Codes, labels: Labels, calibration: int, seed: int
) -> Change:
    """Return a stream of one vendor's drawings, then of another's.

    Args:
        keys: float32 [N, D], of the calibration split, then of the test split.
        codes: uint8 [N, K/8].
        labels: Of them.
        calibration: Size of the calibration split.
        seed: Of the order.

    Raises:
        ValueError: The data has one vendor only.
    """
    vendors = sorted(set(labels.vendor.tolist()) - {""})
    if len(vendors) < 2:
        raise ValueError(f"data has {len(vendors)} vendors; a change takes two, as emoji has")
    first, second = vendors[-1], vendors[0]
    both = labels.modalities == BOTH
    test = np.arange(len(labels)) >= calibration
    rng = np.random.default_rng(seed)

    def of(vendor: str, mask: NDArray[np.bool_]) -> Ints:
        return rng.permutation(np.flatnonzero(both & (labels.vendor == vendor) & mask))

    halves = of(first, test), of(second, test)
    return Change(keys, codes, labels, of(first, ~test), halves, (first, second))


def asked_degraded(labels: Labels, calibration: int, seed: int) -> tuple[Ints, Ints]:
    """Return the test requests that are asked as they are, and those that are asked degraded.

    Halves of the test split by entity: a drawing is asked as it is, or degraded.
    """
    test = np.flatnonzero(labels.modalities == BOTH)
    test = test[test >= calibration]
    rng = np.random.default_rng(seed)
    names = np.unique(labels.entity[test])
    first = np.isin(labels.entity[test], rng.permutation(names)[: len(names) // 2])
    return rng.permutation(test[first]), rng.permutation(test[~first])


def degraded_change(
    keys: Floats, codes: Codes, labels: Labels, calibration: int,
    asked: tuple[Ints, Ints], degraded_keys: Floats, degraded_codes: Codes, modality: str,
) -> Change:  # fmt: skip
    """Return a stream of requests as they are, then of others with one modality degraded.

    Args:
        keys: float32 [N, D], of the calibration split, then of the test split.
        codes: uint8 [N, K/8].
        labels: Of them.
        calibration: Size of the calibration split.
        asked: Of ``asked_degraded``.
        degraded_keys: Of the second of them, degraded.
        degraded_codes: Of them.
        modality: That degrades.
    """
    before, after = asked
    at = np.arange(len(labels), len(labels) + len(after))
    own = np.flatnonzero(labels.modalities[:calibration] == BOTH)
    return Change(
        np.concatenate([keys, degraded_keys]), np.concatenate([codes, degraded_codes]),
        labels.take(np.concatenate([np.arange(len(labels)), after])),
        own, (before, at), ("as calibrated", f"{modality} degraded"),
    )  # fmt: skip


def drift_records(change: Change, space: KeySpace, data: str, seed: int) -> list[Record]:
    """Return hits, false hits and thresholds of each rule, before and after the change.

    Raises:
        ValueError: No threshold keeps the budget on the calibration requests.
    """
    neighbours = Neighbours.of(change.keys, change.labels.scope)
    settings = JudgeSettings(budgets=(MAIN_BUDGET,), seed=seed)
    fitted = calibrate(neighbours, change.labels, change.calibration, settings)[MAIN_BUDGET]
    if fitted.value is None:
        raise ValueError(f"{data} has no threshold to start from: {fitted.reason}")
    value = fitted.value

    def drift() -> Drift:
        return Drift(change.keys[change.calibration], space)

    rules: dict[str, tuple[Callable[[], Acceptance], float]] = {
        "fixed": (lambda: FixedThreshold(value), 0.0),
        f"following, from {HIGH:g} (C4)": (lambda: DriftFollowing(drift()), 0.0),
        "following, from the calibrated": (lambda: DriftFollowing(drift(), high=value), 0.0),
        "tightening": (lambda: DriftTightening(FixedThreshold(value), drift()), 0.0),
        "fixed, audited": (lambda: FixedThreshold(value), AUDIT_SHARE),
        "recalibrating": (
            lambda: Recalibrating(FixedThreshold(value), MAIN_BUDGET), AUDIT_SHARE,
        ),
        "recalibrating, all audited": (
            lambda: Recalibrating(FixedThreshold(value), MAIN_BUDGET), 1.0,
        ),
    }  # fmt: skip
    records = []
    for name, (rule, audit_share) in rules.items():
        sheet = Sheet(data, "test", "", name, None)
        records += _streamed(change, space, rule(), drift(), audit_share, sheet, seed)
    return records


def _streamed(
    change: Change, space: KeySpace, rule: Acceptance, drift: Drift, audit_share: float,
    sheet: Sheet, seed: int,
) -> list[Record]:  # fmt: skip
    """Ask a cache both halves, and count."""
    records = []
    group = change.labels.group
    with SemanticCache(
        None, Spaced(space), acceptance=rule, audit_share=audit_share, seed=seed
    ) as cache:
        for half, what, order in zip(HALVES, change.names, change.halves, strict=True):
            hits = false_hits = audits = 0
            needed: list[float] = []
            drifts: list[float] = []
            for request in order.tolist():
                key = Key(space, change.keys[request], change.codes[request], None, SCOPE)
                threshold = rule.threshold(key, BOTH)
                needed += [] if threshold is None else [threshold]
                drifts.append(drift.kl())
                drift.observe(key)
                found = cache.lookup_key(key, BOTH)
                if not isinstance(found, Hit):
                    cache.insert(found, int(group[request]))
                    continue
                right = found.response == int(group[request])
                hits, false_hits = hits + right, false_hits + (not right)
                if found.audit:
                    audits += 1
                    cache.report_audit(found, right)
            mine = replace(sheet, subset=f"{half}: {what}")
            count, served = len(order), hits + false_hits
            records += [
                mine.share("hit_rate", hits, count),
                mine.share("false_hit_rate", false_hits, served),
                mine.figure("threshold", _mean(needed), n=len(needed), unit="cosine"),
                mine.figure("kl", _mean(drifts), n=count, unit="nats"),
                mine.figure("audits", float(audits), n=served, unit="count"),
            ]
    return records


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
