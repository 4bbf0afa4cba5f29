from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from keynet.evaluation.acceptance_drift import (
    asked_degraded,
    degraded_change,
    drift_records,
    vendor_change,
)
from keynet.evaluation.labels import Labels
from keynet.types import KeySpace

SPACE = KeySpace("toy", 1, 64, 64, "f00df00df00df00d")


@pytest.fixture(scope="module")
def keys(labels: Labels, keys_of: Callable[..., np.ndarray]) -> np.ndarray:
    return keys_of(labels, noise=0.6)


def codes(keys: np.ndarray) -> np.ndarray:
    return np.packbits(keys >= 0, axis=1)


def test_a_change_of_vendor_asks_one_after_the_other(labels: Labels, keys: np.ndarray) -> None:
    middle = len(labels) // 2
    change = vendor_change(keys, codes(keys), labels, middle, 0)
    before, after = change.halves
    assert change.names == ("B", "A")
    assert set(labels.vendor[before]) == set(labels.vendor[change.calibration]) == {"B"}
    assert set(labels.vendor[after]) == {"A"}
    assert before.min() >= middle and after.min() >= middle and change.calibration.max() < middle
    one = labels.take(labels.vendor == "A")
    with pytest.raises(ValueError, match="data has 1 vendors; a change takes two"):
        vendor_change(keys, codes(keys), one, 10, 0)


def test_degraded_requests_keep_their_labels(labels: Labels, keys: np.ndarray) -> None:
    middle = len(labels) // 2
    asked = asked_degraded(labels, middle, 0)
    assert not set(labels.entity[asked[0]]) & set(labels.entity[asked[1]])
    new = keys[asked[1]][:, ::-1]
    change = degraded_change(keys, codes(keys), labels, middle, asked, new, codes(new), "image")
    assert change.labels.group[change.halves[1]].tolist() == labels.group[asked[1]].tolist()
    assert np.array_equal(change.keys[change.halves[1]], new)
    assert change.names == ("as calibrated", "image degraded")


def test_the_rules_differ_as_they_say(labels: Labels, keys: np.ndarray) -> None:
    middle = len(labels) // 2
    asked = asked_degraded(labels, middle, 0)
    # Degraded keys lose what tells groups apart: they all lie near one direction.
    new = keys[asked[1]] + 1.6 * keys[0]
    new = (new / np.linalg.norm(new, axis=1, keepdims=True)).astype(np.float32)
    change = degraded_change(keys, codes(keys), labels, middle, asked, new, codes(new), "image")
    records = drift_records(change, replace(SPACE, dim=keys.shape[1]), "toy", 0)
    found = {(r.method, r.subset.split(":")[0], r.metric): r for r in records}

    def value(method: str, metric: str, half: str = "after") -> float:
        figure = found[method, half, metric].value
        assert figure is not None
        return figure

    assert value("fixed", "kl") > 10 * value("fixed", "kl", "before")
    start = value("fixed", "threshold", "before")
    assert value("fixed", "threshold") == pytest.approx(start)
    assert value("following, from the calibrated", "threshold") < start
    assert value("tightening", "threshold") > start
    assert value("following, from the calibrated", "hit_rate") >= value("fixed", "hit_rate")
    # Wrong for nearly all that is served: audits find it, what follows the drift serves more of it.
    wrong = {m: value(m, "false_hit_rate") for m in ("fixed", "following, from the calibrated")}
    assert wrong["fixed"] > 0.1
    audited = found["recalibrating, all audited", "after", "threshold"]
    assert audited.value is None or audited.value > start
    assert value("fixed", "audits") == 0 < value("fixed, audited", "audits")
