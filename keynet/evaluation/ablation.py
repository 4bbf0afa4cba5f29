"""One variant beside another: what a cache would serve, picture by picture, over several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keynet.evaluation.closed_loop import SINGLE_PASS, calibrate, single_pass_order, slices
from keynet.evaluation.cuts import units
from keynet.evaluation.labels import Labels
from keynet.evaluation.settings import MAIN_BUDGET, JudgeSettings
from keynet.replay.closed_loop import HIT, MISS, replay
from keynet.replay.neighbours import Floats, Neighbours

RESAMPLES = 2000
SETTINGS = JudgeSettings(budgets=(MAIN_BUDGET,))
Vendors = tuple[str, str]


class PassFigures(NamedTuple):
    """What one shuffled pass serves at the threshold that is calibrated for 1 % false hits.

    ``hits`` is the share of each picture's requests that hit. Without a threshold nothing is
    served. Where several vendors drew, the means of a pass of each.
    """

    hit_rate: float
    false_hit_rate: float
    of_oracle: float
    hits: dict[int, float]


def single_pass(cal_keys: Floats, cal: Labels, keys: Floats, test: Labels) -> PassFigures:
    """Return the figures of requests with image and text.

    Args:
        cal_keys: Unit rows [C, D] of the calibration requests.
        cal: Their labels.
        keys: Unit rows [N, D] of those that are judged.
        test: Their labels.
    """
    found = slices(test)
    vendors = [name for name in found if name.startswith(f"{SINGLE_PASS}:") and "_only" not in name]
    near_cal = Neighbours.of(cal_keys, cal.modalities)
    near = Neighbours.of(keys, test.modalities)
    cal_slices, unit = slices(cal), units(test)
    figures, hits = [], {}
    for name in vendors or [SINGLE_PASS]:
        threshold = calibrate(near_cal, cal, cal_slices[name], SETTINGS)[MAIN_BUDGET]
        order = single_pass_order(found[name], SETTINGS)
        result = replay(near, test.group, order, threshold.value)
        served, oracle = result.num_served, max(1, result.oracle_hits)
        figures.append(
            (
                result.hits / len(order),
                result.false_hits / served if served else 0.0,
                result.hits / oracle,
            )
        )
        hit = result.outcome == HIT
        for picture in np.unique(unit[order]):
            hits[int(picture)] = float(hit[unit[order] == picture].mean())
    rate, false_rate, of_oracle = np.mean(figures, axis=0)
    return PassFigures(float(rate), float(false_rate), float(of_oracle), hits)


class DriftFigures(NamedTuple):
    """A stream whose drawings change vendor half way, one cache and one threshold throughout.

    ``after`` is of the second half, ``hits`` as in ``PassFigures``.
    """

    hit_rate_before: float
    hit_rate_after: float
    false_hit_rate_before: float
    false_hit_rate_after: float
    hits: dict[int, float]


def drifting_stream(
    cal_keys: Floats, cal: Labels, before: Floats, after: Floats, test: Labels, vendors: Vendors
) -> DriftFigures:
    """Return what is served when drawings of ``vendors[1]`` follow those of ``vendors[0]``.

    Args:
        cal_keys: Unit rows [C, D] of the calibration requests, of the model before the change; the
            threshold is calibrated for 1 % on those of the first vendor.
        cal: Their labels.
        before: Unit rows [N, D] of the judged requests by the model before the change.
        after: By the model after it; entries stored before it keep their keys.
        test: Their labels.
        vendors: Who draws first, and then.
    """
    first, then = (slices(test)[f"{SINGLE_PASS}:{vendor}"] for vendor in vendors)
    keys = before.copy()
    keys[then] = after[then]
    index = slices(cal)[f"{SINGLE_PASS}:{vendors[0]}"]
    fitted = calibrate(Neighbours.of(cal_keys, cal.modalities), cal, index, SETTINGS)
    order = np.concatenate([single_pass_order(half, SETTINGS) for half in (first, then)])
    near = Neighbours.of(keys, test.modalities)
    result = replay(near, test.group, order, fitted[MAIN_BUDGET].value)
    halves = (slice(0, len(first)), slice(len(first), None))
    hit = [result.outcome[half] == HIT for half in halves]
    served = [result.outcome[half] != MISS for half in halves]
    unit = units(test)[order[halves[1]]]
    rates = [float(h.mean()) for h in hit]
    wrong = [float((s & ~h).sum() / max(1, s.sum())) for s, h in zip(served, hit, strict=True)]
    by_picture = {int(p): float(hit[1][unit == p].mean()) for p in np.unique(unit)}
    return DriftFigures(rates[0], rates[1], wrong[0], wrong[1], by_picture)


def paired_difference(
    mine: Sequence[Mapping[int, float]], other: Sequence[Mapping[int, float]], seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean over pictures of mine less other, with its 95 % bootstrap interval.

    Args:
        mine: Of each seed, a figure of each picture.
        other: The same of another variant, for the same pictures.
        seed: Of the resamples.

    Raises:
        ValueError: When the two are not of the same pictures.
    """
    pictures = sorted(mine[0])
    if any(sorted(run) != pictures for run in (*mine, *other)):
        raise ValueError("the two variants were not judged on the same pictures")
    rows = [np.mean([[run[p] for p in pictures] for run in runs], axis=0) for runs in (mine, other)]
    gain = rows[0] - rows[1]
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(gain), size=(RESAMPLES, len(gain)))
    low, high = np.quantile(gain[drawn].mean(1), (0.025, 0.975))
    return float(gain.mean()), float(low), float(high)
