from __future__ import annotations

from dataclasses import replace

import pytest

from data.requests import check_equivalents
from keynet.types import Request

ONE = Request(text="what is it?", group="cat")
ASKED = replace(ONE, text="which animal?")


@pytest.mark.parametrize(
    "requests",
    [
        (), (ONE,), (ONE, ONE), (ONE, replace(ASKED, group="dog")),
        (ONE, replace(ASKED, scope={"tenant": "b"})),
    ],
)  # fmt: skip
def test_requests_without_an_equivalent_are_refused(requests: tuple[Request, ...]) -> None:
    message = rf"few: the training split .requests: {len(requests)}. has no two different"
    with pytest.raises(ValueError, match=message):
        check_equivalents("few", requests)


def test_two_phrasings_are_enough_to_learn_from() -> None:
    check_equivalents("few", [ONE, ASKED])
