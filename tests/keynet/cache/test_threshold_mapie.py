"""The fixed-store calibration against MAPIE's risk control: the same test, written by others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache.threshold import fit_fixed_store, served_needed

pytest.importorskip("mapie", reason="needs keynet-cache[dev]")

from mapie.risk_control import BinaryClassificationController, BinaryRisk
from mapie.risk_control.fwer_control import control_fwer
from mapie.risk_control.methods import compute_hoeffding_bentkus_p_value


def sequence(similarity: np.ndarray, budget: float, delta: float) -> np.ndarray:
    """Thresholds, strict to loose, from the first that serves enough to pass at all."""
    values, count = np.unique(similarity, return_counts=True)
    served = np.cumsum(count[::-1])
    return values[::-1][served >= served_needed(budget, delta)]


def by_parts(
    similarity: np.ndarray, correct: np.ndarray, budget: float, delta: float
) -> float | None:
    """Of those valid by MAPIE's p-values and fixed sequence, the strictest of most correct hits.

    Not by its controller, which turns the sequence round where few are served and the first are
    wrong.
    """
    tried = sequence(similarity, budget, delta)
    if not len(tried):
        return None
    taken = similarity >= tried[:, None]
    served, wrong = taken.sum(1), (taken & ~correct).sum(1)
    # Less a trifle: ceil(n * (k / n)) is k + 1 now and then.
    rate = np.maximum(wrong / served - 1e-9, 0)
    p_values = compute_hoeffding_bentkus_p_value(rate, served, budget, binary=True)[:, 0]
    valid = np.sort(control_fwer(p_values, delta, "fixed_sequence"))
    return float(tried[valid][np.argmax((served - wrong)[valid])]) if len(valid) else None


def queries(
    count: int, seed: int, slope: float, steps: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Similarities in [0, 1], the less similar the more often wrong; ``steps``: with ties."""
    rng = np.random.default_rng(seed)
    similarity = rng.beta(6, 2, count)
    if steps is not None:
        similarity = np.round(similarity * steps) / steps
    return similarity, rng.random(count) > np.exp(-slope * similarity)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(60, 1500),
    st.integers(0, 2**31),
    st.floats(3, 12),
    st.sampled_from([None, 64, 256]),
    st.sampled_from([0.01, 0.05, 0.1]),
    st.sampled_from([0.05, 0.2]),
)
def test_both_take_the_same_threshold(
    count: int, seed: int, slope: float, steps: int | None, budget: float, delta: float
) -> None:
    similarity, correct = queries(count, seed, slope, steps)
    found = fit_fixed_store(similarity, correct, budget, delta).value
    assert found == by_parts(similarity, correct, budget, delta)


def test_they_agree_on_thresholds_and_not_only_on_none() -> None:
    found = []
    for seed in range(20):
        similarity, correct = queries(1500, seed, 6, None)
        found.append(fit_fixed_store(similarity, correct, 0.05).value)
        assert found[-1] == by_parts(similarity, correct, 0.05, 0.05)
    assert sum(value is not None for value in found) > 5
    assert len(set(found)) > 5


@pytest.mark.parametrize(("budget", "every"), [(0.01, 20), (0.05, 7), (0.1, 3)])
def test_the_controller_takes_it_too_where_the_rate_only_rises(budget: float, every: int) -> None:
    similarity = np.linspace(1, 0.2, 2000)
    # All right above .7, then every so many wrong: served from strict to loose, the rate rises.
    at = np.arange(2000)
    correct = (similarity > 0.7) | (at % every != 0)
    false_hits = BinaryRisk(
        risk_occurrence=lambda truth, served: truth == 0,
        risk_condition=lambda truth, served: served == 1,
        higher_is_better=False,
    )
    control = BinaryClassificationController(
        lambda rows: np.column_stack([1 - rows, rows]),
        risk=false_hits,
        target_level=budget,
        confidence_level=0.95,
        best_predict_param_choice="recall",
        list_predict_params=sequence(similarity, budget, 0.05),
        fwer_method="fixed_sequence",
    )
    with pytest.warns(UserWarning, match="monotonic"):  # between two wrong ones the rate falls
        control.calibrate(similarity, correct.astype(int))
    found = fit_fixed_store(similarity, correct, budget).value
    assert found is not None
    theirs = control.valid_predict_params.min()
    theirs = similarity[correct & (similarity >= theirs)].min()  # which has as many correct hits
    served = [int((similarity >= value).sum()) for value in (found, theirs)]
    # It may stop at a rate that its rounding took for one false hit more.
    assert 0 <= served[0] - served[1] <= 0.1 * served[0]
    assert 700 < served[0] < 2000
