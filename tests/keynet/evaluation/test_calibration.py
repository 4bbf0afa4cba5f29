from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from keynet.evaluation.calibration import calibrate_keys, stored
from keynet.evaluation.labels import Labels

Keys = Callable[..., np.ndarray]


def test_every_measure_pattern_and_budget_gets_both_thresholds(
    labels: Labels, keys_of: Keys
) -> None:
    keys = {None: keys_of(labels, noise=0.4), 64: keys_of(labels, seed=1, noise=0.4)}
    found = calibrate_keys(keys, labels, [0.05, 0.01], "toy")
    names = [(c.threshold.kind, c.modalities, c.bits, c.threshold.budget) for c in found]
    assert len(set(names)) == len(names) == 2 * 3 * 2 * 2
    assert {name[0] for name in names} == {"closed_loop", "fixed_store"}
    assert {name[1] for name in names} == {"image+text", "image", "text"}
    assert {name[2:] for name in names} == {(b, x) for b in (None, 64) for x in (0.01, 0.05)}
    both = [c for c in found if c.modalities == "image+text" and c.threshold.kind == "closed_loop"]
    assert all(c.threshold.value is not None for c in both)
    assert {c.threshold.data for c in found} == {"toy"}


def test_where_there_is_too_little_the_reason_says_how_many_are_needed(
    labels: Labels, keys_of: Keys
) -> None:
    few = labels.take(np.flatnonzero(labels.modalities == "image+text")[:200])
    found = calibrate_keys({None: keys_of(few)}, few, [0.01], "toy")
    reasons = {c.threshold.kind: c.threshold.reason for c in found}
    assert all(c.threshold.value is None for c in found)
    assert reasons["closed_loop"].startswith("needs 299 distinct questions served for 0.01, had ")
    assert reasons["fixed_store"].startswith("needs 299 answerable calibration queries for 0.01")


def test_a_source_of_one_pattern_is_calibrated_once(labels: Labels, keys_of: Keys) -> None:
    pictures = labels.take(labels.modalities == "image")
    found = calibrate_keys({None: keys_of(pictures)}, pictures, [0.05], "toy")
    assert [(c.threshold.kind, c.modalities) for c in found] == [
        ("fixed_store", "image"), ("closed_loop", "image"),
    ]  # fmt: skip


@pytest.mark.parametrize("budgets", [[], [0], [1], [0.01, -0.5], [2], ["x"], [None]])
def test_a_budget_that_is_no_share_is_refused(labels: Labels, keys_of: Keys, budgets: list) -> None:
    with pytest.raises(ValueError, match=r"give shares between 0 and 1.*a budget of 0 serves noth"):
        calibrate_keys({None: keys_of(labels)}, labels, budgets, "toy")


def test_what_is_stored_says_what_it_holds_for(labels: Labels, keys_of: Keys) -> None:
    one = calibrate_keys({None: keys_of(labels, noise=0.4)}, labels, [0.05], "toy")[1]
    kept = stored(one.threshold, one.modalities, 64, "f00d")
    assert (kept.kind, kept.modalities, kept.bits, kept.budget, kept.data, kept.key_space) == (
        "closed_loop", "image+text", 64, 0.05, "toy/calibration", "f00d",
    )  # fmt: skip
    assert (kept.value, kept.n) == (one.threshold.value, one.threshold.n)
    assert kept.confidence is None
