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

    ``replay_hit_rate`` is of all visits; the rate of false hits is NaN where nothing is served.

    ``hits`` is the share of each picture's requests that hit. Without a threshold nothing is
    served. Where several vendors drew, the means of a pass of each.
    """

    replay_hit_rate: float
    replay_false_hit_rate: float
    hits_of_oracle: float
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
    near_cal = Neighbours.of(cal_keys, cal.scope)
    near = Neighbours.of(keys, test.scope)
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
                result.false_hits / served if served else np.nan,
                result.hits / oracle,
            )
        )
        hit = result.outcome == HIT
        for picture in np.unique(unit[order]):
            hits[int(picture)] = float(hit[unit[order] == picture].mean())
    rate, false_rate, of_oracle = zip(*figures, strict=True)
    # Where nothing is served no rate of false hits is told.
    told = [share for share in false_rate if not np.isnan(share)]
    mean_false = float(np.mean(told)) if told else np.nan
    return PassFigures(float(np.mean(rate)), mean_false, float(np.mean(of_oracle)), hits)


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
    fitted = calibrate(Neighbours.of(cal_keys, cal.scope), cal, index, SETTINGS)
    order = np.concatenate([single_pass_order(half, SETTINGS) for half in (first, then)])
    near = Neighbours.of(keys, test.scope)
    result = replay(near, test.group, order, fitted[MAIN_BUDGET].value)
    halves = (slice(0, len(first)), slice(len(first), None))
    hit = [result.outcome[half] == HIT for half in halves]
    served = [result.outcome[half] != MISS for half in halves]
    unit = units(test)[order[halves[1]]]
    rates = [float(h.mean()) for h in hit]
    wrong = [
        float((s & ~h).sum() / s.sum()) if s.any() else np.nan
        for s, h in zip(served, hit, strict=True)
    ]
    by_picture = {int(p): float(hit[1][unit == p].mean()) for p in np.unique(unit)}
    return DriftFigures(rates[0], rates[1], wrong[0], wrong[1], by_picture)


def paired_difference(
    mine: Sequence[Mapping[int, float]], other: Sequence[Mapping[int, float]], seed: int = 0
) -> tuple[float, float, float]:
    """Return the mean of mine less other, with its 95 % interval over seeds and pictures.

    A resample draws seeds of each, and pictures, the same of both.

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
    rows = [np.array([[run[p] for p in pictures] for run in runs]) for runs in (mine, other)]
    rng = np.random.default_rng(seed)
    gains = []
    for _ in range(RESAMPLES):
        chosen = rng.integers(len(pictures), size=len(pictures))
        means = [part[rng.integers(len(part), size=len(part))][:, chosen].mean() for part in rows]
        gains.append(means[0] - means[1])
    low, high = np.quantile(gains, (0.025, 0.975))
    return float(rows[0].mean() - rows[1].mean()), float(low), float(high)
