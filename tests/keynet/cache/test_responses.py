from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keynet.cache.entry import CacheError
from keynet.cache.responses import decoded, encoded

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    PLAIN | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def alike(found: Any, given_: Any) -> bool:
    return type(found) is type(given_) and repr(found) == repr(given_)


@given(JSON | st.text(st.characters(codec="utf-8")) | st.binary())
def test_what_is_taken_comes_back(response: Any) -> None:
    try:
        stored = encoded(response)
    except CacheError as error:  # a text that is no Unicode
        assert "lone surrogate" in str(error)
        return
    assert alike(decoded(*stored), response)


class Words(str):
    __slots__ = ()


def nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "response",
    [
        Words("x"),
        np.str_("x"),
        np.bytes_(b"x"),
        bytearray(b"x"),
        nested(960),
        nested(10**5),
        {1, 2},
    ],
    ids=["own str", "NumPy str", "NumPy bytes", "bytearray", "deep", "deeper", "set"],
)
def test_what_would_come_back_as_something_else_is_refused(response: Any) -> None:
    with pytest.raises(CacheError, match=r"^response is .*; give "):
        encoded(response)
