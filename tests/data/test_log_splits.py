from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.log_splits import split_by_parts
from data.requests import Split

SHARES: dict[Split, float] = {"train": 0.6, "calibration": 0.2, "test": 0.2}
PARTS = st.lists(st.sets(st.integers(0, 30), max_size=3), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(PARTS, st.integers(0, 5))
def test_nothing_is_in_two_splits_and_none_is_empty(parts: list[set[int]], seed: int) -> None:
    try:
        split = split_by_parts(parts, SHARES, seed)
    except ValueError as error:
        assert "must stay together" in str(error)
        return
    assert set(split) == set(SHARES)
    where: dict[int, str] = {}
    for of, name in zip(parts, split, strict=True):
        for part in of:
            assert where.setdefault(part, name) == name


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5))
def test_shares_are_kept_where_nothing_is_joined(seed: int) -> None:
    counts = Counter(split_by_parts([{n} for n in range(1000)], SHARES, seed))
    assert counts == {"train": 600, "calibration": 200, "test": 200}


def test_a_chain_stays_together_and_a_large_set_goes_to_training() -> None:
    chain = [{n, n + 1} for n in range(700)]
    split = split_by_parts([*chain, *({-n} for n in range(1, 301))], SHARES, 0)
    assert set(split[:700]) == {"train"}
    assert Counter(split[700:]) == {"calibration": 150, "test": 150}


def test_the_seed_decides() -> None:
    parts = [{n} for n in range(100)]
    assert split_by_parts(parts, SHARES, 1) == split_by_parts(parts, SHARES, 1)
    assert split_by_parts(parts, SHARES, 1) != split_by_parts(parts, SHARES, 2)


def test_too_little_is_told() -> None:
    with pytest.raises(ValueError, match=r"3 requests are 2 sets .* 3 are needed for train, cal"):
        split_by_parts([{1}, {1, 2}, {3}], SHARES, 0)
