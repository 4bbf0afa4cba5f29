from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keynet.evaluation.closed_loop import (
    calibrate,
    calibration_orders,
    slices,
    zipf_orders,
)
from keynet.evaluation.labels import Labels
from keynet.evaluation.settings import JudgeSettings
from keynet.replay.closed_loop import count_served
from keynet.replay.neighbours import Neighbours

SETTINGS = JudgeSettings(budgets=(0.01, 0.05), visits=500)


def test_slices_are_each_vendor_and_each_modality_alone(labels: Labels) -> None:
    found = slices(labels)
    expected = {
        "single_pass": labels.modalities == "image+text",
        "single_pass:A": (labels.modalities == "image+text") & (labels.vendor == "A"),
        "single_pass:B": (labels.modalities == "image+text") & (labels.vendor == "B"),
        "single_pass:image_only": labels.modalities == "image",
        "single_pass:text_only": labels.modalities == "text",
    }
    assert list(found) == list(expected)
    for name, index in found.items():
        assert index.tolist() == np.flatnonzero(expected[name]).tolist(), name
        assert len(index), name
    one_vendor = labels.take(labels.vendor == "A")
    assert list(slices(one_vendor)) == ["single_pass", "single_pass:image_only"]


def test_orders_are_whole_passes_then_halves_of_whole_entities(labels: Labels) -> None:
    index = np.arange(len(labels))
    orders = calibration_orders(labels, index, SETTINGS)
    assert len(orders) == 6 + 24
    assert len({tuple(order.tolist()) for order in orders}) == 30
    for order in orders[:6]:
        assert sorted(order.tolist()) == index.tolist()
    for order in orders[6:]:
        assert len(np.unique(order)) == len(order)
        assert 0.35 < len(order) / len(labels) < 0.65
        chosen = set(labels.entity[order].tolist()) - {-1}
        inside = np.isin(labels.entity, list(chosen))
        assert set(order.tolist()) >= set(np.flatnonzero(inside).tolist())
    assert (labels.entity[orders[6]] == -1).any()  # texts without a picture take part


def test_calibration_keeps_the_budget_on_the_whole(
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
            count_served(neighbours, labels.group, labels.group, order, value)
            for order in calibration_orders(labels, index, SETTINGS)[:6]
        ]
        rates = [c.false_hits / c.served for c in counts]
        assert 0 < np.mean(rates) < budget


def test_zipf_orders_use_at_most_their_share_of_the_pool(labels: Labels) -> None:
    orders = zipf_orders(labels, "replay:zipf1", JudgeSettings())
    pool = np.flatnonzero(labels.modalities == "image+text")
    assert [len(order) for order in orders] == [int(0.6 * len(pool))] * 5
    assert all(set(order.tolist()) <= set(pool.tolist()) for order in orders)
    assert len(zipf_orders(labels, "replay:zipf0", SETTINGS)[0]) == 500
