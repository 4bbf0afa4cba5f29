"""What weighing modalities by their live confidence does when one of them degrades (K5).

A stream asks a fixed store, first as it was calibrated, then the same again with one modality
degraded. Hits are judged by distances with and without the weights, and codes are spread over
buckets by bits drawn evenly, or by weight, from the modalities.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from keynet.cache.modality_distance import Blocks, confidence, weighted_distance
from keynet.cache.threshold import FIXED_STORE, Threshold, fit_fixed_store
from keynet.evaluation.cuts import Cut
from keynet.evaluation.fixed_store import Served, area_under, hindsight
from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Record, Sheet
from keynet.pictures import open_image
from keynet.types import Request

Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]
Logits = NDArray[np.float32]
Weights = dict[str, Floats]

WEIGHTINGS = ("unweighted", "weighted", "masked")
HALVES = ("before", "after")
MEMORY = 0.99  # of the running confidence, a request: a hundred requests
SIDE, QUALITY = 24, 5  # of a degraded picture: pixels, and of JPEG
MISSPELT = 0.25  # of the letters of a degraded text
CROWDED = 4  # entries of a bucket beyond which it is crowded


@dataclass(frozen=True)
class Drift:
    """A stream and its store.

    Args:
        degraded: The modality that degrades.
        blocks: Bits of each modality.
        stored: Logits of all test requests [N, K], by which the store is filled.
        queries: Logits of the queries of ``cut`` [Q, K], before and after.
        labels: Of the test requests.
        cut: Store and queries among them.
    """

    degraded: str
    blocks: Blocks
    stored: Logits
    queries: Mapping[str, Logits]
    labels: Labels
    cut: Cut


def drift_records(
    drift: Drift,
    calibration: Logits,
    calibration_labels: Labels,
    calibration_cut: Cut,
    budgets: Sequence[float],
    data: str,
) -> list[Record]:
    """Return hits, false hits, confidences and bucket loads, before and after, by weighting.

    A figure at a budget takes a threshold that keeps it on the calibration split with the same
    distance: with the guarantee of ``keynet.cache.threshold`` (``hit_rate_at``), and at its bare
    rate there (``point_hit_rate_at``), which guarantees nothing but is known for weak codes too.
    ``masked`` compares by the other modality alone after the drift: what weights can gain at most
    by distrust, and what it costs not to look at a modality at all.

    Args:
        drift: The stream.
        calibration: Logits of the calibration requests [N, K], none degraded: thresholds.
        calibration_labels: Of them.
        calibration_cut: Store and queries among them.
        budgets: Of false hits among the served.
        data: Name of the data.
    """
    records = []
    bits = max(end for _, end in drift.blocks.values())
    for weighting in WEIGHTINGS:
        masked = drift.degraded if weighting == "masked" else None
        asked = calibration[calibration_cut.query]
        served = serve_by_weight(
            calibration, asked, calibration_labels, calibration_cut, drift.blocks,
            weights_of(asked, drift.blocks, weighting, masked),
        )  # fmt: skip
        guaranteed = [
            fit_fixed_store(served.similarity, served.correct, budget, data=data)
            for budget in budgets
        ]
        points = [point_threshold(served, budget, data) for budget in budgets]
        for half in HALVES:
            logits = drift.queries[half]
            weights = weights_of(logits, drift.blocks, weighting, masked)
            found = serve_by_weight(
                drift.stored, logits, drift.labels, drift.cut, drift.blocks, weights
            )
            sheet = Sheet(data, "test", subset(drift, half), weighting, bits)
            for prefix, thresholds in (("", guaranteed), ("point_", points)):
                for threshold in thresholds:
                    records += _hit_records(sheet, found, threshold, prefix)
            records.append(sheet.figure("p_chr_auc", area_under(found), n=len(logits)))
            nearest = int((found.correct & found.answerable).sum())
            records.append(sheet.share("nearest_right_rate", nearest, int(found.answerable.sum())))
            if not masked:
                records += _load_records(sheet, logits, drift.blocks, weighting)
    for half in HALVES:
        sheet = Sheet(data, "test", subset(drift, half), "confidence", bits)
        for name, (first, end) in drift.blocks.items():
            sure = confidence(drift.queries[half][:, first:end])
            records.append(sheet.figure(f"confidence_{name}", float(sure.mean()), n=len(sure)))
    return records


def subset(drift: Drift, half: str) -> str:
    """Return what records of a half of the stream are of."""
    return f"{drift.cut.subset}:drift_{drift.degraded}:{half}"


def point_threshold(served: Served, budget: float, data: str) -> Threshold:
    """Return the loosest threshold at which these served queries keep the budget themselves."""
    value = hindsight(served, budget)
    found = np.isfinite(value)
    return Threshold(
        value=value if found else None,
        kind=FIXED_STORE,
        budget=budget,
        confidence=None,
        n=len(served.similarity),
        data=data,
        reason="" if found else f"the most similar queries already break {budget:g}",
    )


def degraded(request: Request, modality: str, seed: int) -> Request:
    """Return the request with a picture of 24 px at JPEG quality 5, or with a misspelt text.

    Raises:
        ValueError: When the request lacks the modality.
    """
    if modality == "text" and request.text is not None:
        return replace(request, text=misspelt(request.text, np.random.default_rng(seed)))
    if modality != "image" or request.image is None:
        raise ValueError(f"request has no {modality} to degrade; take requests with both")
    picture = open_image(request.image).convert("RGB")
    picture.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY)
    return replace(request, image=buffer.getvalue())


def misspelt(text: str, rng: np.random.Generator, share: float = MISSPELT) -> str:
    """Return the text with a share of its letters dropped, doubled, exchanged or replaced.

    Letters are replaced by others of the text, so that it stays in its script.
    """
    letters = [letter for letter in text if letter.isalpha()]
    found, skip = [], False
    for letter, following in zip(text, [*text[1:], ""], strict=True):
        if skip:
            skip = False
            continue
        if not letter.isalpha() or rng.random() >= share:
            found.append(letter)
            continue
        kind = int(rng.integers(4))
        skip = kind == 2 and following != ""
        other = letters[int(rng.integers(len(letters)))]
        found.append(("", letter * 2, following + letter, other)[kind])
    return "".join(found) or text  # a text of one letter may not become empty


def weights_of(logits: Logits, blocks: Blocks, weighting: str, masked: str | None) -> Weights:
    """Return each query's weights [Q] of the modalities, by its own confidence or even.

    Raises:
        ValueError: When the weighting is unknown.
    """
    if weighting not in WEIGHTINGS:
        raise ValueError(f"weighting={weighting!r}: expected one of {', '.join(WEIGHTINGS)}")
    if weighting == "weighted":
        return {name: confidence(logits[:, first:end]) for name, (first, end) in blocks.items()}
    return {name: np.full(len(logits), float(name != masked)) for name in blocks}


def serve_by_weight(
    stored: Logits, asked: Logits, labels: Labels, cut: Cut, blocks: Blocks, weights: Weights
) -> Served:
    """Return the nearest stored code of each query and its similarity, 1 - weighted distance.

    Args:
        stored: Logits of all requests [N, K].
        asked: Logits of the queries of ``cut`` [Q, K].
        labels: Of all requests.
        cut: Store and queries among them.
        blocks: Bits of each modality.
        weights: Of each query.
    """
    distance = weighted_distance(codes_of(asked), codes_of(stored[cut.store]), blocks, weights)
    # As in keynet.replay.neighbours: rounding, not the order of additions, decides what ties.
    similarity = np.round(1 - distance, 6)
    best = similarity.argmax(axis=1)
    nearest = cut.store[best]
    return Served(
        nearest,
        similarity[np.arange(len(best)), best],
        np.asarray(labels.group[nearest] == labels.group[cut.query]),
        cut.answerable,
    )


def codes_of(logits: Logits) -> Codes:
    """Return packed codes [N, K/8] of logits [N, K]."""
    return np.packbits(logits >= 0, axis=1)


def running_confidence(logits: Logits, blocks: Blocks) -> dict[str, float]:
    """Return the confidence of each modality as it stands at the end of a stream [N, K]."""
    weight = MEMORY ** np.arange(len(logits))[::-1]
    return {
        name: float(weight @ confidence(logits[:, first:end]) / weight.sum())
        for name, (first, end) in blocks.items()
    }


def bucket_bits(blocks: Blocks, weights: Mapping[str, float], count: int) -> list[int]:
    """Return which bits name a bucket: the first of each block, in proportion to the weights.

    They are taken in turns, by whose share is furthest behind; even weights alternate.

    Raises:
        ValueError: When the weights are not those of the blocks, or the bits do not suffice.
    """
    if set(weights) != set(blocks) or min(weights.values()) < 0 or not sum(weights.values()):
        raise ValueError(
            f"weights {dict(weights)}: give each of {', '.join(blocks)} one, not all 0"
        )
    left = {name: end - first for name, (first, end) in blocks.items() if weights[name] > 0}
    if not 0 < count <= sum(left.values()):
        raise ValueError(f"{count} bits of a bucket: expected 1 to {sum(left.values())}")
    taken = dict.fromkeys(blocks, 0)
    found = []
    for turn in range(count):
        open_blocks = [name for name in left if taken[name] < left[name]]
        total = sum(weights[name] for name in left)
        behind = max(open_blocks, key=lambda name: weights[name] / total * (turn + 1) - taken[name])
        found.append(blocks[behind][0] + taken[behind])
        taken[behind] += 1
    return found


def bucket_load(codes: Codes, bits: Sequence[int]) -> tuple[float, float]:
    """Return the greatest load over the mean load, and the share of codes in crowded buckets.

    Args:
        codes: [N, K/8].
        bits: That name one of 2^len(bits) buckets.
    """
    unpacked = np.unpackbits(codes, axis=1)[:, list(bits)].astype(np.int64)
    bucket = unpacked @ (1 << np.arange(len(bits), dtype=np.int64))
    load = np.unique(bucket, return_counts=True)[1]
    mean = len(codes) / 2 ** len(bits)
    return float(load.max() / mean), float(load[load > CROWDED].sum() / len(codes))


def _hit_records(sheet: Sheet, served: Served, threshold: Threshold, prefix: str) -> list[Record]:
    hits, wrong = (
        f"{prefix}{name}_at_{threshold.budget:g}" for name in ("hit_rate", "false_hit_rate")
    )
    if threshold.value is None:
        return [sheet.figure(name, None, note=threshold.reason) for name in (hits, wrong)]
    taken = served.similarity >= threshold.value
    right, count = int((taken & served.correct).sum()), int(taken.sum())
    return [
        sheet.share(hits, right, int(served.answerable.sum())),
        sheet.share(wrong, count - right, count, "" if count else "nothing served"),
    ]


def _load_records(sheet: Sheet, logits: Logits, blocks: Blocks, weighting: str) -> list[Record]:
    count = max(1, int(np.ceil(np.log2(len(logits)))))  # as many buckets as entries, or more
    weights = dict.fromkeys(blocks, 1.0)
    if weighting == "weighted":
        weights = running_confidence(logits, blocks)
    bits = bucket_bits(blocks, weights, count)
    greatest, crowded = bucket_load(codes_of(logits), bits)
    of_image = {name: sum(a <= bit < b for bit in bits) for name, (a, b) in blocks.items()}
    note = ", ".join(f"{number} bits of {name}" for name, number in of_image.items())
    return [
        sheet.figure("bucket_load_max_over_mean", greatest, n=len(logits), note=note, unit="ratio"),
        sheet.figure("crowded_bucket_rate", crowded, n=len(logits), note=note),
    ]
