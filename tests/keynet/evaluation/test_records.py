from __future__ import annotations

import pytest

from keynet.evaluation.records import Record, Sheet, interval

SHEET = Sheet("toy", "test", "all", "m", 256)


def test_interval_is_clopper_pearson() -> None:
    # 0 of n: 1 - (alpha / 2) ** (1 / n), by hand.
    assert interval(0, 100) == pytest.approx((0.0, 1 - 0.025**0.01))
    low, high = interval(50, 100)
    assert (low, high) == pytest.approx((0.3983, 0.6017), abs=1e-4)  # R: binom.test(50, 100)


def test_json_has_the_fields_of_the_schema() -> None:
    row = SHEET.share("hit_rate_at_0.01", 97, 100).as_dict()
    assert list(row) == [
        "data", "split", "subset", "method", "bits", "metric", "value", "low", "high", "n", "unit",
    ]  # fmt: skip
    assert (row["value"], row["n"], row["unit"]) == (0.97, 100, "share")
    assert Record("d", "s", "a", "m", None, "x", None, note="why").as_dict()["note"] == "why"


def test_nothing_to_count_is_not_zero() -> None:
    assert SHEET.share("x", 0, 0).value is None
    assert SHEET.spread("x", [], 0).value is None
    spread = SHEET.spread("x", [0.1, 0.3], 10)
    assert (spread.value, spread.low, spread.high) == (pytest.approx(0.2), 0.1, 0.3)
