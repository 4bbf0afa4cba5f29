from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from keynet.evaluation.cuts import Cut, cut
from keynet.evaluation.fixed_store import (
    Served,
    chr_curve,
    fixed_store_records,
    hindsight_over_cuts,
    serve,
)
from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Sheet

SHEET = Sheet("toy", "test", "all", "m", None)


def served(similarity: list[float], correct: list[bool], answerable: list[bool]) -> Served:
    return Served(
        np.arange(len(similarity)),
        np.array(similarity),
        np.array(correct),
        np.array(answerable),
    )


def many(false_below: float, n: int = 1000) -> Served:
    """Answerable above 0.5; above ``false_below`` always right, below always wrong."""
    similarity = np.linspace(1, 0, n)
    return Served(
        np.arange(n), similarity, similarity >= false_below, similarity >= min(0.5, false_below)
    )


@pytest.mark.parametrize("subset", ["all", "other_vendor:A->B"])  # of both modalities, and mixed
def test_serve_takes_the_nearest_of_the_same_modalities(
    labels: Labels, keys_of: Callable[..., np.ndarray], subset: str
) -> None:
    found = cut(labels, subset, 0)
    keys = keys_of(labels, noise=0.3)
    got = serve(keys, labels, found)
    for at in range(0, len(found.query), 7):
        query = found.query[at]
        store = found.store[labels.modalities[found.store] == labels.modalities[query]]
        sims = keys[store] @ keys[query]
        assert got.similarity[at] == pytest.approx(sims.max(), abs=1e-5)
        assert got.nearest[at] == store[sims.argmax()]
    assert (got.correct <= got.answerable).all()
    assert got.correct[got.answerable].all()  # 0.3 of noise does not reach another group


def test_a_query_without_its_modalities_in_the_store_is_not_served(
    labels: Labels, keys_of: Callable[..., np.ndarray]
) -> None:
    found, alone = cut(labels, "all", 0), cut(labels, "image_only", 0)
    query = np.append(found.query, alone.query)
    answerable = np.append(found.answerable, np.zeros(len(alone.query), dtype=bool))
    got = serve(keys_of(labels), labels, Cut("all", found.store, query, answerable))
    image = labels.modalities[query] == "image"
    assert 0 < image.sum() < len(query)
    assert (got.nearest[image] == -1).all()
    assert (got.similarity[image] == -np.inf).all()
    assert not got.correct[image].any()
    assert (got.nearest[~image] >= 0).all()


def test_figures_by_hand() -> None:
    test = served(
        [0.9, 0.9, 0.8, 0.7, 0.6], [True, True, False, True, False], [True, True, False, True, True]
    )
    records, thresholds = fixed_store_records(SHEET, many(0.55), test, [0.05])
    by_metric = {r.metric: r for r in records}
    # Calibration is all right above 0.55, so the threshold serves all five.
    assert list(thresholds) == [0.05]
    assert 0.55 <= (thresholds[0.05].value or 0) < 0.56
    hit, false = by_metric["hit_rate_at_0.05"], by_metric["false_hit_rate_at_0.05"]
    assert (hit.value, hit.n) == (0.75, 4)
    assert (false.value, false.n) == (0.4, 5)
    assert false.note == "over budget"
    assert by_metric["hindsight_hit_rate_at_0.05"].value == 0.5
    # Precision 1 over the first 2/5, then 2/3, 3/4 and 3/5.
    assert by_metric["p_chr_auc"].value == pytest.approx((2 + 2 / 3 + 3 / 4 + 3 / 5) / 5)


def test_hindsight_over_cuts_is_the_mean_of_the_shares_that_each_could_serve() -> None:
    half = served([0.9, 0.8, 0.7], [True, False, True], [True, False, True])
    none = served([0.9, 0.8], [False, True], [False, True])
    unasked = served([0.9], [False], [False])
    found = hindsight_over_cuts(SHEET, [half, none, unasked], 0.05)
    assert found.metric == "hindsight_hit_rate_over_cuts_at_0.05"
    assert (found.value, found.low, found.high, found.n) == (0.25, 0, 0.5, 2)
    assert hindsight_over_cuts(SHEET, [unasked], 0.05).value is None


def test_too_few_queries_are_not_available_and_say_why() -> None:
    cal = served([0.9] * 100, [True] * 100, [True] * 100)
    records, thresholds = fixed_store_records(SHEET, cal, cal, [0.01, 0.05])
    by_metric = {r.metric: r for r in records}
    assert by_metric["hit_rate_at_0.01"].value is None
    assert "needs 299" in by_metric["hit_rate_at_0.01"].note
    assert thresholds[0.01].value is None
    assert thresholds[0.01].reason == by_metric["hit_rate_at_0.01"].note
    assert thresholds[0.05].value is not None
    assert by_metric["hit_rate_at_0.05"].value == 1.0
    assert by_metric["false_hit_rate_at_0.05"].value == 0.0


def test_curve_serves_ties_together() -> None:
    coverage, precision = chr_curve(
        served([0.5, 0.9, 0.5, 0.5], [True, True, False, False], [True] * 4)
    )
    assert coverage.tolist() == [0.25, 1.0]
    assert precision.tolist() == [1.0, 0.5]
    assert [len(a) for a in chr_curve(served([], [], []))] == [0, 0]


def test_what_has_nothing_in_its_scope_is_never_served() -> None:
    found = served(
        [0.9, 0.8, -np.inf, -np.inf], [True, True, False, False], [True] * 2 + [False] * 2
    )
    coverage, precision = chr_curve(found)
    assert coverage.tolist() == [0.25, 0.5]
    assert precision.tolist() == [1, 1]
