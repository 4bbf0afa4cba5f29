from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Sheet
from keynet.evaluation.retrieval import recall_at_1

SHEET = Sheet("toy", "test", "other_vendor:A->B", "m", None)


def test_keys_of_the_entity_find_it_and_random_ones_do_not(
    labels: Labels, keys_of: Callable[..., np.ndarray]
) -> None:
    naming = np.isin(labels.kind_of_intent, ["name", "describe"])
    # Entities named in words over both vendors' drawings, so that each query can be answered.
    words = naming & (labels.modalities == "image+text")
    both = np.intersect1d(
        labels.entity[words & (labels.vendor == "A")], labels.entity[words & (labels.vendor == "B")]
    )
    labels = labels.take(np.isin(labels.entity, both))
    naming = np.isin(labels.kind_of_intent, ["name", "describe"])
    assert set(labels.modalities[naming]) == {"image", "image+text"}
    rng = np.random.default_rng(0)
    by_entity = rng.normal(size=(200, 64))[labels.entity]
    by_entity /= np.linalg.norm(by_entity, axis=1, keepdims=True)
    right = recall_at_1(by_entity.astype(np.float32), labels, SHEET, "A", "B")
    assert (right.value, right.n) == (1.0, len(both))
    chance = recall_at_1(keys_of(labels, noise=100.0), labels, SHEET, "A", "B")
    assert chance.value is not None
    assert chance.value < 0.1
    assert recall_at_1(keys_of(labels), labels, SHEET, "A", "C").value is None
