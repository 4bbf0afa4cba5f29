from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keynet.evaluation.closed_loop import (
    JudgeSettings,
    calibrate,
    slices,
    subsample_orders,
    zipf_orders,
)
from keynet.evaluation.labels import Labels
from keynet.replay.closed_loop import count_served
from keynet.replay.neighbours import Neighbours

SETTINGS = JudgeSettings(budgets=(0.01, 0.05), visits=500)


def test_slices_are_all_and_each_vendor(labels: Labels) -> None:
    found = slices(labels)
    assert list(found) == ["single_pass", "single_pass:A", "single_pass:B"]
    assert len(found["single_pass"]) == len(labels)
    assert set(labels.vendor[found["single_pass:B"]]) == {"B"}
    assert list(slices(labels.take(labels.vendor == "A"))) == ["single_pass"]


def test_subsamples_keep_entities_whole(labels: Labels) -> None:
    index = np.arange(len(labels))
    orders = subsample_orders(labels, index, SETTINGS)
    assert len(orders) == 12
    for order in orders:
        assert len(np.unique(order)) == len(order)
        assert 0.5 < len(order) / len(labels) < 0.75
        chosen = set(labels.entity[order].tolist()) - {-1}
        inside = np.isin(labels.entity, list(chosen))
        assert set(order.tolist()) >= set(np.flatnonzero(inside).tolist())
    assert (labels.entity[orders[0]] == -1).any()  # texts without a picture take part


def test_calibration_keeps_the_budget_on_every_subsample(
    labels: Labels, keys_of: Callable[..., np.ndarray]
) -> None:
    neighbours = Neighbours.of(keys_of(labels, noise=1.1), labels.modalities)
    index = np.arange(len(labels))
    thresholds = calibrate(neighbours, labels, index, SETTINGS, "toy")
    strict, loose = thresholds[0.01].value, thresholds[0.05].value
    assert strict is not None
    assert loose is not None
    assert loose <= strict
    for budget, value in ((0.01, strict), (0.05, loose)):
        counts = [
            count_served(neighbours, labels.group, order, value)
            for order in subsample_orders(labels, index, SETTINGS)
        ]
        assert all(false <= budget * served for served, false in counts)
        assert min(served for served, _ in counts) > 0


def test_zipf_orders_use_at_most_their_share_of_the_pool(labels: Labels) -> None:
    orders = zipf_orders(labels, "replay:zipf1", JudgeSettings())
    assert [len(order) for order in orders] == [int(0.6 * len(labels))] * 5
    assert len(zipf_orders(labels, "replay:zipf0", SETTINGS)[0]) == 500
