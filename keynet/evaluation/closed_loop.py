"""Closed-loop replays of a split: their calibration and their records."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from keynet.cache.threshold import Counts, Threshold, fit_closed_loop
from keynet.evaluation.cuts import units, with_both
from keynet.evaluation.false_hits import count_kinds
from keynet.evaluation.fixed_store import OVER_BUDGET
from keynet.evaluation.labels import Ints, Labels
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.settings import JudgeSettings
from keynet.replay.closed_loop import FALSE_HIT, HIT, ReplayResult, count_served, replay
from keynet.replay.neighbours import Floats, Neighbours
from keynet.replay.orders import zipf_order

COLD_VISITS = 1000  # K2 of the specification counts hits over 1,000 cold requests
SINGLE_PASS = "single_pass"
POPULARITY = {  # subset: exponent of Zipf's law, share of verbatim repeats
    "replay:zipf0": (0.0, 0.0),
    "replay:zipf1": (1.0, 0.0),
    "replay:zipf1:verbatim30": (1.0, 0.3),
}
MIN_ENTITIES = 50  # with fewer, a half of them leaves out whole kinds of picture


def slices(labels: Labels) -> dict[str, Ints]:
    """Requests of each pass: with image and text, of each vendor of two or more, of one modality.

    Which modalities are present is part of the scope, so each presence pattern is a cache of its
    own with a threshold of its own.
    """
    both = with_both(labels)
    found = {SINGLE_PASS: np.flatnonzero(both)}
    vendors = sorted(set(labels.vendor.tolist()) - {""})
    if len(vendors) > 1:
        for vendor in vendors:
            found[f"{SINGLE_PASS}:{vendor}"] = np.flatnonzero(both & (labels.vendor == vendor))
    for modality in ("image", "text"):
        alone = np.flatnonzero(labels.modalities == modality)
        if len(alone):
            found[f"{SINGLE_PASS}:{modality}_only"] = alone
    return found


def calibrate(
    neighbours: Neighbours, labels: Labels, index: Ints, settings: JudgeSettings, data: str = ""
) -> dict[float, Threshold]:
    """Closed-loop threshold of each budget, from passes over all and over halves of ``index``."""
    orders = calibration_orders(labels, index, settings)
    question = np.unique(np.stack([_things(labels), labels.group]), axis=1, return_inverse=True)[1]

    @functools.cache
    def outcome(number: int, threshold: float) -> Counts:
        return count_served(neighbours, labels.group, question, orders[number], threshold)

    candidates = neighbours.candidates(labels.group, index)
    return {
        budget: fit_closed_loop(
            outcome, candidates, budget, wholes=settings.wholes, halves=settings.halves, data=data
        )
        for budget in settings.budgets
    }


def calibration_orders(labels: Labels, index: Ints, settings: JudgeSettings) -> list[Ints]:
    """Shuffled requests: ``wholes`` times all, then ``halves`` times those of half the entities.

    By picture, or text, where there are too few entities.
    """
    unit, entity = _things(labels)[index], labels.entity[index]
    if len(np.unique(entity[entity >= 0])) < MIN_ENTITIES:
        unit = units(labels)[index]
    names = np.unique(unit)
    orders = []
    for number in range(settings.wholes + settings.halves):
        rng = np.random.default_rng([settings.seed, number])
        taken = index
        if number >= settings.wholes:
            taken = index[np.isin(unit, rng.permutation(names)[: len(names) // 2])]
        orders.append(rng.permutation(taken))
    return orders


def _things(labels: Labels) -> Ints:
    """What each request is about: entity, or picture or text where none is named."""
    clear = labels.entity + len(labels)  # of the pictures' numbers
    things: Ints = np.where(labels.entity >= 0, clear, units(labels))
    return things


def single_pass_order(index: Ints, settings: JudgeSettings) -> Ints:
    """All requests once, shuffled."""
    return np.random.default_rng(settings.seed).permutation(index)


def zipf_orders(labels: Labels, subset: str, settings: JudgeSettings) -> list[Ints]:
    """The orders of one of ``POPULARITY``."""
    exponent, verbatim = POPULARITY[subset]
    pool = np.flatnonzero(with_both(labels))
    visits = min(settings.visits, int(settings.pool_share * len(pool)))
    return [
        pool[zipf_order(labels.group[pool], visits, exponent, settings.seed + order, verbatim)]
        for order in range(settings.orders)
    ]


def single_pass_records(
    sheet: Sheet, labels: Labels, result: ReplayResult, budget: float, main: bool
) -> list[Record]:
    """Figures of one pass; those without a budget in their name only when it is the ``main`` one.

    They have no intervals: the visits of a cache that fills up are not independent.

    ``hits_after_1000`` counts correct hits among the first 1,000 visits of an empty cache.
    """
    visits, served = len(result.order), result.num_served

    def share(metric: str, count: int, n: int, note: str = "") -> Record:
        return sheet.figure(metric, count / n if n else None, n=n, note=note)

    over = OVER_BUDGET if result.false_hits > budget * served else ""
    empty = "" if served else "nothing served"
    records = [
        share(f"replay_hit_rate_at_{budget:g}", result.hits, visits, over),
        share(f"replay_false_hit_rate_at_{budget:g}", result.false_hits, served, over or empty),
    ]
    if not main:
        return records
    cold = result.outcome[:COLD_VISITS] == HIT
    short = "" if len(cold) == COLD_VISITS else f"only {len(cold)} visits"
    false_at = np.flatnonzero(result.outcome == FALSE_HIT)
    query, answer = result.order[false_at], result.served[false_at]
    records += [
        share("hits_of_oracle", result.hits, result.oracle_hits),
        sheet.figure("hits_after_1000", None, note=short)
        if short
        else share("hits_after_1000", int(cold.sum()), COLD_VISITS),
        share(
            "wrong_response_rate",
            int((labels.response[query] != labels.response[answer]).sum()),
            served,
            empty,
        ),
    ]
    for kind, count in count_kinds(labels, query, answer).items():
        records.append(share(f"false_hits:{kind}", count, served, empty))
    return records


def identity_records(
    sheet: Sheet, keys: Floats, labels: Labels, settings: JudgeSettings
) -> list[Record]:
    """What a cache of exact identities serves and how often wrongly, whatever the budget (1)."""
    order = single_pass_order(slices(labels)[SINGLE_PASS], settings)
    result = replay(keys, labels.group, order, 1.0, labels.scope)
    wrong = int(
        (
            labels.response[result.order[result.outcome == FALSE_HIT]]
            != labels.response[result.served[result.outcome == FALSE_HIT]]
        ).sum()
    )
    served = result.num_served
    return [
        sheet.share("replay_hit_rate_at_1", result.hits, len(order)),
        sheet.share("replay_false_hit_rate_at_1", result.false_hits, served),
        sheet.share("wrong_response_rate_at_1", wrong, served),
    ]


def zipf_records(
    sheet: Sheet, labels: Labels, results: Sequence[ReplayResult], budget: float, main: bool
) -> list[Record]:
    """Means over orders, with the least and the greatest."""
    visits = len(results[0].order)
    served = [r for r in results if r.num_served]
    false_rates = [r.false_hits / r.num_served for r in served]
    over = OVER_BUDGET if false_rates and float(np.mean(false_rates)) > budget else ""
    num_served = sum(r.num_served for r in served)
    hits = [r.hits / visits for r in results]
    records = [
        sheet.spread(f"replay_hit_rate_at_{budget:g}", hits, visits, over),
        sheet.spread(f"replay_false_hit_rate_at_{budget:g}", false_rates, num_served, over),
    ]
    if not main:
        return records
    of_oracle = [r.hits / r.oracle_hits for r in results if r.oracle_hits]
    wrong = [
        float(np.sum(labels.response[r.order] != labels.response[r.served], where=r.served >= 0))
        / r.num_served
        for r in served
    ]
    records.append(sheet.spread("hits_of_oracle", of_oracle, sum(r.oracle_hits for r in results)))
    records.append(sheet.spread("wrong_response_rate", wrong, num_served))
    if visits >= COLD_VISITS:
        cold = [float((r.outcome[:COLD_VISITS] == HIT).mean()) for r in results]
        records.append(sheet.spread("hits_after_1000", cold, COLD_VISITS))
    return records


def not_available(sheet: Sheet, threshold: Threshold, main: bool) -> list[Record]:
    """The records that a missing threshold leaves without a value."""
    metrics = [f"replay{kind}_rate_at_{threshold.budget:g}" for kind in ("_hit", "_false_hit")]
    if main:
        metrics += ["hits_of_oracle", "hits_after_1000", "wrong_response_rate"]
    return [sheet.figure(metric, None, note=threshold.reason) for metric in metrics]
