"""Ways to key a request, side by side on the same trace (K2 of the specification)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keynet.cache.acceptance import FixedThreshold
from keynet.evaluation import baselines
from keynet.evaluation.closed_loop import SINGLE_PASS, calibrate, slices
from keynet.evaluation.replay_data import ReplayData
from keynet.evaluation.settings import JudgeSettings
from keynet.evaluation.two_threshold_rule import fit_two_thresholds
from keynet.replay.cache_replay import KeyedRequests, met_before, replay_cache
from keynet.replay.neighbours import Floats, Ints, Neighbours
from keynet.replay.semantic_trace import SemanticTrace
from keynet.replay.two_thresholds import PairedSimilarities, replay_two_thresholds
from keynet.types import Request

ALIGNED, TWO_THRESHOLDS = "aligned", "image_and_text"
IDENTITIES = ("exact", "ids", "fused_sha256", "text_only", "image_only")
CALIBRATED = ("perceptual_hash", "concat_l2", ALIGNED)
STRATEGIES: Mapping[str, str] = {  # in the order of the table
    ALIGNED: "the key model's vector, compared by similarity",
    "exact": "image bytes and text, hashed",
    "ids": "name of the picture file and text, hashed",
    "fused_sha256": "SHA-256 of the key model's vector",
    "concat_l2": "image and text embeddings, normalised and concatenated",
    TWO_THRESHOLDS: "image cosine >= a and text cosine >= b",
    "perceptual_hash": "perceptual hash of the image, and text",
    "text_only": "text, hashed",
    "image_only": "image bytes, hashed",
}
TIMED = 40  # requests encoded one by one


@dataclass(frozen=True)
class Limits:
    """From which similarity a strategy serves.

    Args:
        value: None serves nothing.
        text: The text's own, of two thresholds.
        reason: Why ``value`` is None.
    """

    value: float | None
    text: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class StrategyReplay:
    """What a strategy did to one trace.

    Args:
        outcome: int8 [V], see ``CacheReplay``.
        served: int64 [V].
        oracle: bool [V].
        seconds: float32 [V], of the lookups.
    """

    outcome: NDArray[np.int8]
    served: Ints
    oracle: NDArray[np.bool_]
    seconds: Floats


def check_strategies(names: Sequence[str]) -> list[str]:
    """Return names of strategies.

    Raises:
        ValueError: One is not known, or there is none.
    """
    unknown = [name for name in names if name not in STRATEGIES]
    if unknown or not names:
        wrong = f"no strategy {unknown[0]!r}" if unknown else "no strategies given"
        raise ValueError(f"{wrong}; known are {', '.join(STRATEGIES)}")
    return list(names)


def fit_limits(data: ReplayData, name: str, settings: JudgeSettings, budget: float) -> Limits:
    """Return from which similarity a strategy serves, from the calibration split alone.

    What is hashed is served when it is equal: there is nothing to calibrate.
    """
    if name in IDENTITIES:
        return Limits(1.0)
    labels = data.labels["calibration"]
    both = slices(labels)[SINGLE_PASS]
    if name == TWO_THRESHOLDS:
        parts = data.parts("calibration")
        found = fit_two_thresholds(
            parts["image"][both], parts["text"][both], labels.take(both), settings, budget
        )
        return Limits(found.a, found.b, found.reason)
    near = Neighbours.of(data.rows(name, "calibration"), labels.scope)
    threshold = calibrate(near, labels, both, settings, data.name)[budget]
    return Limits(threshold.value, reason=threshold.reason)


class StrategyRunner:
    """Replays traces under one strategy after another; what all traces share is made once."""

    def __init__(self, data: ReplayData) -> None:
        self._data = data
        self._pools: dict[str, KeyedRequests] = {}
        self._pairs: PairedSimilarities | None = None
        self._place: Ints | None = None

    def pool(self, name: str) -> KeyedRequests:
        """Return the requests keyed by a strategy."""
        if name not in self._pools:
            self._pools[name] = self._data.pool(name)
        return self._pools[name]

    def replay(self, name: str, trace: SemanticTrace, limits: Limits) -> StrategyReplay:
        """Visit the requests of a trace of images with texts, with an empty cache."""
        if name == TWO_THRESHOLDS:
            return self._two(trace, limits)
        found = replay_cache(self.pool(name), trace, FixedThreshold(limits.value))
        return StrategyReplay(found.outcome, found.served, found.oracle, found.seconds)

    def _two(self, trace: SemanticTrace, limits: Limits) -> StrategyReplay:
        labels = self._data.labels["test"]
        both = np.flatnonzero(labels.modalities == "image+text")
        parts = self._data.parts("test")
        if self._pairs is None or self._place is None:
            self._pairs = PairedSimilarities.of(parts["image"][both], parts["text"][both])
            self._place = np.full(len(labels), -1, np.int64)
            self._place[both] = np.arange(len(both))
        oracle = met_before(self.pool(ALIGNED), trace)
        if limits.value is None or limits.text is None:
            nothing = np.zeros(len(trace), np.int8)
            return StrategyReplay(
                nothing, np.full(len(trace), -1), oracle, np.zeros(len(trace), np.float32)
            )
        order = self._place[trace.request]
        found = replay_two_thresholds(
            self._pairs, labels.group[both], order, limits.value, limits.text
        )
        served = np.where(found.served >= 0, both[found.served], -1)
        stored = both[order[found.outcome == 0]]
        seconds = _scan_seconds(parts["image"][stored], parts["text"][stored])
        return StrategyReplay(
            found.outcome, served, oracle, np.full(len(trace), seconds, np.float32)
        )


def encode_seconds(data: ReplayData, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Return for each strategy how long the key of one request takes, of ``TIMED`` requests.

    Each request is new to the encoders; the first few, in which they warm up, are not counted.
    """
    both = np.flatnonzero(data.labels["test"].modalities == "image+text")
    chosen = np.random.default_rng(0).permutation(both)
    texts, requests = set[str](), list[Request]()
    for at in chosen.tolist():  # of different texts, which the text encoder would keep
        request = data.requests["test"][at]
        if request.text not in texts:
            texts.add(str(request.text))
            requests.append(request)
    requests = requests[: TIMED + 5]
    made: dict[str, Callable[[Request], object]] = {
        "exact": lambda r: hashlib.sha256(
            baselines.image_digest(r.image) + baselines.text_digest(r.text)
        ).digest(),
        "ids": lambda r: (
            baselines.text_digest(r.tags.get("picture")) + baselines.text_digest(r.text)
        ),
        "text_only": lambda r: baselines.text_digest(r.text),
        "image_only": lambda r: baselines.image_digest(r.image),
        "perceptual_hash": lambda r: baselines.perceptual_hash([r]),
        ALIGNED: data.encoder.encode,
        "fused_sha256": lambda r: hashlib.sha256(data.encoder.encode(r).vector.tobytes()).digest(),
    }
    if {"concat_l2", TWO_THRESHOLDS} & set(names):
        images, words = baselines.Lite0Features(data.image_size), baselines.MiniLMText()
        both_parts = _seconds(lambda r: baselines.concat_l2([r], images, words), requests)
    return {
        name: both_parts
        if name in ("concat_l2", TWO_THRESHOLDS)
        else _seconds(made[name], requests)
        for name in names
    }


def _seconds(make: Callable[[Request], object], requests: Sequence[Request]) -> NDArray[np.float64]:
    found = []
    for request in requests:
        begun = time.perf_counter()
        make(request)
        found.append(time.perf_counter() - begun)
    return np.array(found[5:])


def _scan_seconds(image: Floats, text: Floats) -> float:
    """Return what comparing one request with all that a replay stored takes, the median of 20."""
    if not len(image):
        return 0.0
    found = []
    for at in range(min(20, len(image))):
        begun = time.perf_counter()
        (image @ image[at] >= 0.5) & (text @ text[at] >= 0.5)
        found.append(time.perf_counter() - begun)
    return float(np.median(found))
