from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from keynet.evaluation.cuts import cut
from keynet.evaluation.judge import CUTS, Judgement, judge, oracle_records
from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Record
from keynet.evaluation.settings import JudgeSettings

Keys = Callable[..., np.ndarray]
SETTINGS = JudgeSettings(visits=1200)
NOISE = 1.0  # mistakes and misses, and for both vendors a threshold at 1 %


def run(keys_of: Keys, cal: Labels, test: Labels, noise: float) -> Judgement:
    return judge(
        "toy_key", 256, keys_of(cal, 1, noise), cal, keys_of(test, 2, noise), test, "toy", SETTINGS
    )


def figures(records: list[Record]) -> dict[tuple[str, str], Record]:
    found = {(r.subset, r.metric): r for r in records}
    assert len(found) == len(records)  # no figure twice
    return found


@pytest.fixture(scope="module")
def perfect(labels: Labels, other_labels: Labels, keys_of: Keys) -> Judgement:
    return run(keys_of, labels, other_labels, 0.0)


@pytest.fixture(scope="module")
def noisy(labels: Labels, other_labels: Labels, keys_of: Keys) -> Judgement:
    return run(keys_of, labels, other_labels, NOISE)


def test_a_key_that_knows_the_groups_reaches_the_oracle(
    perfect: Judgement, other_labels: Labels
) -> None:
    found = figures(perfect.records)
    oracle = figures(oracle_records(other_labels, "toy", SETTINGS))
    assert found["all", "hit_rate_at_0.05"].value == 1.0
    for subset in ("single_pass", "single_pass:A", "replay:zipf0", "replay:zipf1:verbatim30"):
        name = f"hits of {subset}"
        hits = found[subset, "replay_hit_rate_at_0.01"].value
        known = oracle[subset, "replay_hit_rate_at_0.01"].value
        assert hits is not None, name
        # Not quite 1: the threshold goes down until chance meetings use up the budget.
        assert hits == pytest.approx(known, abs=0.01), name
        assert (found[subset, "hits_of_oracle"].value or 0) > 0.98
        assert (found[subset, "replay_false_hit_rate_at_0.01"].value or 0) < 0.02
    cold = found["single_pass", "hits_after_1000"].value
    assert cold == pytest.approx(oracle["single_pass", "hits_after_1000"].value, abs=0.01)


def test_what_cannot_be_calibrated_is_not_available(perfect: Judgement) -> None:
    found = figures(perfect.records)
    missing = found["single_pass", "replay_hit_rate_at_0.001"]
    assert missing.value is None
    assert "needs 2995 distinct" in missing.note
    for record in perfect.records:
        assert (record.value is None) <= bool(record.note)
        assert record.value is None or math.isfinite(record.value)
    json.dumps([r.as_dict() for r in perfect.records], allow_nan=False)


def test_kinds_of_false_hits_add_up(noisy: Judgement) -> None:
    found = figures(noisy.records)
    total = found["single_pass", "replay_false_hit_rate_at_0.01"].value
    kinds = [r.value or 0.0 for r in noisy.records if r.metric.startswith("false_hits:")]
    assert total is not None
    assert total > 0
    assert len(kinds) == 5 * 3  # over all, and over each vendor
    over_all = [
        r.value or 0.0
        for (subset, metric), r in found.items()
        if subset == "single_pass" and metric.startswith("false_hits:")
    ]
    assert sum(over_all) == pytest.approx(total)
    rate = found["single_pass", "wrong_response_rate"].value
    assert rate is not None
    assert rate <= total


def test_over_budget_is_said(noisy: Judgement) -> None:
    for record in noisy.records:
        name, _, budget = record.metric.rpartition("_at_")
        if name in ("false_hit_rate", "replay_false_hit_rate") and record.value is not None:
            assert (record.note == "over budget") == (record.value > float(budget))


def test_another_vendors_drawings_are_cut_many_times(noisy: Judgement) -> None:
    found = {r.subset: r for r in noisy.records if "over_cuts" in r.metric}
    assert set(found) == {"other_vendor:A->B", "other_vendor:B->A"}
    for record in found.values():
        assert record.n == CUTS
        assert record.value is not None and record.low is not None and record.high is not None
        assert record.low < record.value < record.high  # no two cuts are one


def test_worst_misses_are_answerable_and_something_else_was_nearer(
    noisy: Judgement, other_labels: Labels, keys_of: Keys
) -> None:
    keys = keys_of(other_labels, 2, NOISE)
    parts = cut(other_labels, "all", SETTINGS.seed, store_share=SETTINGS.store_share)
    answerable = set(parts.query[parts.answerable].tolist())
    assert noisy.worst_misses
    sims = [similarity for _, _, similarity in noisy.worst_misses]
    assert sims == sorted(sims)
    for query, equivalent, similarity in noisy.worst_misses:
        assert query in answerable
        assert equivalent in parts.store
        assert other_labels.group[query] == other_labels.group[equivalent]
        stored = keys[parts.store] @ keys[query]
        same = other_labels.group[parts.store] == other_labels.group[query]
        assert stored[same].max() == pytest.approx(similarity, abs=1e-5)
        assert stored[~same].max() >= similarity - 1e-5


def test_thresholds_are_those_of_the_fixed_store_and_of_the_single_pass(noisy: Judgement) -> None:
    assert [(t.kind, t.budget) for t in noisy.thresholds] == [
        (kind, budget) for kind in ("fixed_store", "closed_loop") for budget in SETTINGS.budgets
    ]


def test_worst_pairs_and_curves(noisy: Judgement, other_labels: Labels) -> None:
    sims = [similarity for _, _, similarity in noisy.worst_false_hits]
    assert sims == sorted(sims, reverse=True)
    for query, served, _ in noisy.worst_false_hits:
        assert other_labels.group[query] != other_labels.group[served]
    assert noisy.coverage == sorted(noisy.coverage)
    assert noisy.coverage[-1] == 1.0
    curve = noisy.replay_curve
    assert curve is not None
    assert curve.visits[-1] == (other_labels.modalities == "image+text").sum()
    assert len(curve.visits) == len(curve.hits) <= 400
    assert all(hit <= oracle for hit, oracle in zip(curve.hits, curve.oracle, strict=True))


def test_the_same_call_gives_the_same_records(
    noisy: Judgement, labels: Labels, other_labels: Labels, keys_of: Keys
) -> None:
    assert run(keys_of, labels, other_labels, NOISE).records == noisy.records


def test_a_blind_key_has_no_threshold(labels: Labels, other_labels: Labels) -> None:
    ones = [np.ones((len(part), 1), dtype=np.float32) for part in (labels, other_labels)]
    found = judge("blind", None, ones[0], labels, ones[1], other_labels, "toy", SETTINGS)
    record = figures(found.records)["single_pass", "replay_hit_rate_at_0.01"]
    assert record.value is None
    assert "no threshold" in record.note
    assert found.replay_curve is None
    assert found.worst_false_hits  # of the fixed store


def test_keys_and_labels_must_agree(labels: Labels, keys_of: Keys) -> None:
    keys = keys_of(labels)
    with pytest.raises(ValueError, match="test keys for"):
        judge("m", None, keys, labels, keys[:-1], labels, "toy", SETTINGS)
    with pytest.raises(ValueError, match="norm 2"):
        judge("m", None, keys, labels, 2 * keys, labels, "toy", SETTINGS)
