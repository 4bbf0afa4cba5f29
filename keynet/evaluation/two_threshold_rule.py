"""Two thresholds calibrated at once: of the picture's similarity and of the text's."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from keynet.cache.threshold import Counts, fit_closed_loop
from keynet.evaluation.closed_loop import calibration_orders
from keynet.evaluation.labels import Ints, Labels
from keynet.evaluation.settings import JudgeSettings
from keynet.replay.neighbours import Floats, Neighbours
from keynet.replay.two_thresholds import PairedSimilarities, count_two_thresholds

PICTURES, TEXTS = 24, 10  # thresholds tried of each


class TwoThresholds(NamedTuple):
    """The pair, or None with the reason."""

    a: float | None
    b: float | None
    reason: str = ""


def fit_two_thresholds(
    image: Floats, text: Floats, labels: Labels, settings: JudgeSettings, budget: float
) -> TwoThresholds:
    """Return the pair of most correct hits that keeps the budget with the margin of one threshold.

    For each threshold of the text, that of the picture is fitted by ``fit_closed_loop`` as it is;
    of the pairs that it takes, the one of most correct hits in the first whole pass wins.

    Args:
        image: float32 [N, Di], unit rows, of calibration requests that all have both modalities.
        text: float32 [N, Dt], unit rows.
        labels: Of them.
        settings: Of the passes.
        budget: False hits / served.
    """
    pairs = PairedSimilarities.of(image, text)
    everything = np.arange(len(labels))
    orders = calibration_orders(labels, everything, settings)
    shown = np.where(labels.entity >= 0, labels.entity, labels.picture)
    question = np.unique(np.stack([shown, labels.group]), axis=1, return_inverse=True)[1]
    tried_a = _worth_trying(image, labels.entity, PICTURES)
    tried_b = np.append(_worth_trying(text, labels.intent, TEXTS), 1.0)
    best, most, reason = TwoThresholds(None, None), 0, ""
    for b in np.unique(tried_b)[::-1].tolist():

        @functools.cache
        def outcome(number: int, a: float, b: float = b) -> Counts:
            return count_two_thresholds(pairs, labels.group, question, orders[number], a, b)

        found = fit_closed_loop(
            outcome, tried_a, budget, wholes=settings.wholes, halves=settings.halves
        )
        if found.value is None:
            reason = reason or found.reason
            continue
        first = outcome(0, found.value)
        if first.served - first.false_hits > most:
            most = first.served - first.false_hits
            best = TwoThresholds(found.value, b)
    return best if best.a is not None else TwoThresholds(None, None, reason)


def _worth_trying(rows: Floats, alike: Ints, count: int) -> Floats:
    """Return thresholds at which things that are not alike begin to meet."""
    distinct, first = np.unique(rows, axis=0, return_index=True)
    near = Neighbours.of(distinct, length=min(96, len(distinct)))
    tried: Floats = np.minimum(near.candidates(alike[first], count=count), 1.0)
    return tried
