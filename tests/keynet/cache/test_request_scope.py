from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keynet.cache.request_scope import SHARED, request_scope
from keynet.cache.scope import scope_digest

FIELDS: dict[str, Any] = {
    "model": "m", "sampling": {"temperature": 0}, "system": None, "turns": [], "tenant": "a",
    "scene": "s", "device": "d", "user": "u",
}  # fmt: skip


def digest(**fields: Any) -> str:
    return scope_digest(request_scope(**(FIELDS | fields)), True, True)


@given(tenants=st.lists(st.text(st.characters(codec="utf-8")), unique=True, min_size=2, max_size=9))
def test_two_tenants_never_meet(tenants: list[str]) -> None:
    assert len({digest(tenant=tenant) for tenant in tenants}) == len(tenants)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_must_be_given_and_matters(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        request_scope(**{other: value for other, value in FIELDS.items() if other != name})
    other = {"x": 1} if name == "sampling" else ["x"] if name == "turns" else "x"
    assert len({digest(), digest(**{name: other}), digest(**{name: SHARED})}) == 3


def test_pictures_of_earlier_turns_count_by_their_bytes() -> None:
    def turn(picture: bytes) -> str:
        return digest(turns=[{"role": "user", "content": ["what is this?", picture]}])

    assert turn(b"a") == turn(b"a") != turn(b"b")


def test_what_is_not_asked_for_is_left_out_by_leaving_it_out() -> None:
    assert digest(language="en") != digest()
    with pytest.raises(ValueError, match="language is SHARED; leave it out"):
        digest(language=SHARED)
