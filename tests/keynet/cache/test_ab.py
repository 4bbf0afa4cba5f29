from __future__ import annotations

from collections import Counter

import pytest

from keynet.cache.ab import split_by
from keynet.cache.entry import CacheError
from keynet.types import Request


def of(tenant: object) -> Request:
    return Request(text="x", scope={"tenant": tenant})


def test_a_split_is_fair_and_lasting() -> None:
    assign = split_by("tenant", [0.25, 0.75])
    found = Counter(assign(of(n)) for n in range(4000))
    assert found[0] == pytest.approx(1000, abs=100) and found[1] == 4000 - found[0]
    again, other = split_by("tenant", [0.25, 0.75]), split_by("tenant", [0.25, 0.75], seed=1)
    assert all(assign(of(n)) == again(of(n)) for n in range(100))
    assert any(assign(of(n)) != other(of(n)) for n in range(100))
    assert {split_by("tenant", [0, 1])(of(n)) for n in range(99)} == {1}


def test_what_cannot_be_split() -> None:
    for shares in ([], [0.5], [-1, 2]):
        with pytest.raises(CacheError, match="which sum to 1"):
            split_by("tenant", shares)
    with pytest.raises(CacheError, match="lacks 'tenant'"):
        split_by("tenant", [1.0])(Request(text="x"))
