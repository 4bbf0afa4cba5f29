from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keynet.cache.scope import scope_digest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3, alphabet="aé漢"), inner),
    max_leaves=8,
)  # fmt: skip
SCOPES = st.dictionaries(st.text(max_size=5, alphabet="abcé"), VALUES)


@given(SCOPES)
def test_the_order_and_kind_of_mappings_do_not_matter(scope: dict[str, Any]) -> None:
    digest = scope_digest(scope, True, True)
    assert digest == scope_digest(dict(reversed(scope.items())), True, True)
    assert digest == scope_digest(MappingProxyType(scope), True, True)
    assert len(digest) == 32
    assert int(digest, 16) >= 0


@given(SCOPES, SCOPES)
def test_unequal_scopes_have_unequal_digests(one: dict[str, Any], other: dict[str, Any]) -> None:
    if one != other:
        assert scope_digest(one, True, True) != scope_digest(other, True, True)


def test_modalities_and_folded_texts_are_in_the_digest() -> None:
    digests = [
        scope_digest({}, True, True),
        scope_digest({}, True, False),
        scope_digest({}, False, True),
        scope_digest({}, False, True, "aa"),
        scope_digest({"folded": "aa"}, False, True),
    ]
    assert len(set(digests)) == 5


@pytest.mark.parametrize("pair", [(1, 1.0), (1, True), (1, "1"), (None, "null"), ("é", "e\u0301")])
def test_values_that_only_look_alike_differ(pair: tuple[Any, Any]) -> None:
    assert len({scope_digest({"a": value}, True, True) for value in pair}) == 2


def test_tuples_are_lists() -> None:
    assert scope_digest({"a": (1, 2)}, True, True) == scope_digest({"a": [1, 2]}, True, True)


def test_the_digest_stays_what_it_was() -> None:
    # sha256 of {"image":true,"scope":{"model":"m","turns":["é"]},"text":false}, by sha256sum
    scope = {"turns": ["é"], "model": "m"}
    assert scope_digest(scope, True, False) == "f71c09ca52cad8d2e17ac748cc742cfd"


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        ({"a": float("nan")}, r"scope\['a'\] is nan; give a finite number"),
        ({"a": [1, float("inf")]}, r"scope\['a'\]\[1\] is inf"),
        ({"a": b"x"}, r"scope\['a'\] is bytes; give text"),
        ({"a": {1: 2}}, r"scope\['a'\] has the key 1; keys must be str"),
        ({"a": {1, 2}}, r"is set; give text"),
        ({"a": "\ud800"}, "not Unicode"),
    ],
)
def test_what_json_cannot_say_is_refused(scope: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        scope_digest(scope, True, True)
    assert "\n" not in str(caught.value)


def test_endless_scopes_are_refused() -> None:
    scope: dict[str, Any] = {}
    scope["a"] = scope
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        scope_digest(scope, True, True)
