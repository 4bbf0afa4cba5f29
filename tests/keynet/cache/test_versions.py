from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keynet.cache.versions import (
    GRAINS,
    KEY_SPACE,
    SCOPE_GRAINS,
    Stamp,
    Versions,
    check_grain,
    named_grains,
    versioned_digest,
)

DIGEST = "0123456789abcdef" * 2
NAMES = st.sampled_from(["a", "b", "", "ä\ud800", "a,b"])
GRAIN = st.tuples(st.sampled_from(GRAINS), NAMES)
KNOWN = st.dictionaries(GRAIN, st.integers(1, 3), max_size=6)
NAMED = st.dictionaries(st.sampled_from(SCOPE_GRAINS), NAMES)


@given(KNOWN, NAMED, NAMES, GRAIN)
def test_a_raise_reaches_exactly_what_names_its_grain(
    known: dict[tuple[str, str], int], named: dict[str, str], space: str, raised: tuple[str, str]
) -> None:
    versions = Versions(known)
    stamps = versions.stamps(space, named)
    before = versioned_digest(DIGEST, stamps)
    assert versions.current(stamps)
    assert {(one.grain, one.name) for one in stamps} == {(KEY_SPACE, space), *named.items()}
    versions.set(Stamp(*raised, versions[raised] + 1))
    reached = raised == (KEY_SPACE, space) or named.get(raised[0]) == raised[1]
    after = versioned_digest(DIGEST, versions.stamps(space, named))
    assert versions.current(stamps) is not reached
    assert (after == before) is not reached


@given(KNOWN, KNOWN, NAMED)
def test_two_histories_share_a_digest_where_their_versions_are_the_same(
    one: dict[tuple[str, str], int], other: dict[tuple[str, str], int], named: dict[str, str]
) -> None:
    stamps = [Versions(known).stamps("a", named) for known in (one, other)]
    first, second = (versioned_digest(DIGEST, those) for those in stamps)
    assert (first == second) is (stamps[0] == stamps[1])
    backwards = dict(reversed(named.items()))
    assert Versions(one).stamps("a", backwards) == stamps[0]


@given(KNOWN, NAMED)
def test_a_digest_stays_one_and_is_its_own_until_something_is_raised(
    known: dict[tuple[str, str], int], named: dict[str, str]
) -> None:
    assert versioned_digest(DIGEST, Versions({}).stamps("a", named)) == DIGEST
    stamps = Versions(known).stamps("a", named)
    found = versioned_digest(DIGEST, stamps)
    assert re.fullmatch("[0-9a-f]{32}", found)
    other = versioned_digest("f" * 32, stamps)
    assert found != other
    assert (other == "f" * 32) is not any(stamp.version for stamp in stamps)


@given(KNOWN, st.lists(st.tuples(GRAIN, st.integers(1, 3)), max_size=6))
def test_what_was_raised_is_told_and_taken_up_again(
    known: dict[tuple[str, str], int], sets: list[tuple[tuple[str, str], int]]
) -> None:
    given_first = dict(known)
    versions, model = Versions(known), dict(known)
    for grain, version in sets:
        versions.set(Stamp(*grain, version))
        model[grain] = version
    assert known == given_first  # what it was made of is not its own
    told = {(one.grain, one.name): one.version for one in versions.raised()}
    assert told == model and len(versions.raised()) == len(model)
    again = Versions(told)
    assert all(again[grain] == versions[grain] for grain in [*model, (KEY_SPACE, "new")])
    assert versions[KEY_SPACE, "new"] == 0


def test_a_scope_names_its_grains_and_no_more() -> None:
    scope = {"user": "u", "tenant": 3, "scene": None, KEY_SPACE: "not by a request", "device": ""}
    assert named_grains(scope) == {"user": "u", "device": ""}
    assert named_grains({}) == {}


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda: named_grains({"scene": 0}),
            "scope['scene'] is 0; expected text, since versions are kept by it",
        ),
        (
            lambda: check_grain("tenant", "a"),
            "grain is 'tenant'; expected one of key_space, scene, device, user",
        ),
        (lambda: check_grain("user", ""), "user is named ''; expected text that is not empty"),
        (lambda: check_grain("user", 7), "user is named 7; expected text that is not empty"),
    ],
)
def test_what_can_have_no_version_is_refused(call: Callable[[], object], line: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        call()
    assert str(error.value) == line


@pytest.mark.parametrize("grain", GRAINS)
def test_every_grain_can_have_one(grain: str) -> None:
    check_grain(grain, "a")
