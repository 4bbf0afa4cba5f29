from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import log_groups
from data.log_groups import Groups, group_requests, normalised
from keynet.types import Request


def ask(text: str | None, response: str, picture: str | None = None, scope: str = "s") -> Request:
    tags = {} if picture is None else {"picture": picture}
    image = None if picture is None else picture.encode()
    return Request(image=image, text=text, response=response, scope={"model": scope}, tags=tags)


def parted(groups: Groups) -> list[int]:
    """The groups as numbers in the order of appearance."""
    return [list(dict.fromkeys(groups.group)).index(name) for name in groups.group]


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("  Is it\n red ?", "is it red"), ("\uff39\uff25\uff33\uff01", "yes"),
        ("Straße.", "strasse"), ("no…", "no"), ("c++", "c++"), ("C#", "c#"), ("50%", "50%"),
        ("?!", "?!"), (None, ""), ("はい。", "はい"),
    ],
)  # fmt: skip
def test_normalised(written: str | None, plain: str) -> None:
    assert normalised(written) == plain


def test_the_same_question_with_the_same_answer_is_equivalent_over_pictures() -> None:
    found = group_requests(
        [
            ask("What colour is it?", "Red.", "a"), ask("what colour is it", "red", "b"),
            ask("What colour is it?", "Blue.", "c"), ask("Is it red?", "yes", "a"),
            ask("Is it round?", "yes", "b"), ask(None, "red", "a"),
        ]
    )  # fmt: skip
    assert parted(found) == [0, 0, 1, 2, 3, 4]
    assert found.intent[0] == found.intent[2]
    assert len(set(found.intent)) == 4


def test_equal_answers_alone_are_doubt_only_about_one_picture() -> None:
    found = group_requests([ask("Is it red?", "yes", "a"), ask("Is it round?", "yes", "b")])
    assert (found.doubt.pairs, found.doubt.requests) == (0, 0)
    found = group_requests(
        [ask("Is it red?", "yes", "a"), ask("Is it round?", "yes", "a"), ask("Is it?", "no", "a")]
    )
    assert parted(found) == [0, 1, 2]
    assert (found.doubt.pairs, found.doubt.requests) == (1, 2)
    other_scope = [ask("Is it red?", "yes", "a"), ask("Is it round?", "yes", "a", scope="t")]
    assert group_requests(other_scope).doubt.pairs == 0


def test_a_request_answered_in_several_ways_joins_no_groups() -> None:
    found = group_requests(
        [
            ask("Is it red?", "yes", "a"), ask("Is it red?", "no", "a"),
            ask("Is it red?", "no", "a"), ask("Is it red?", "yes", "b"),
            ask("Is it red?", "no", "c"),
        ]
    )  # fmt: skip
    assert parted(found) == [0, 0, 0, 1, 0]
    assert found.doubt.answered_otherwise == 1


def test_a_judge_decides_for_one_answer_about_all_pictures() -> None:
    requests = [
        ask("What colour?", "red", "a"), ask("Which colour?", "red", "a"),
        ask("Which colour?", "red", "b"), ask("What colour?", "blue", "c"),
        ask("Which colour?", "blue", "d"),
    ]  # fmt: skip
    asked = []

    def judge(one: Request, other: Request) -> float:
        asked.append((one.text, other.text))
        return 0.8

    found = group_requests(requests, judge=judge)
    assert parted(found) == [0, 0, 0, 1, 2]
    assert len(set(found.intent)) == 1
    assert asked == [("What colour?", "Which colour?")]
    assert (found.doubt.pairs, found.doubt.judged, found.doubt.joined) == (0, 1, 1)
    strict = group_requests(requests, judge=judge, judge_from=0.81)
    assert parted(strict) == [0, 1, 1, 2, 3]
    assert (strict.doubt.pairs, strict.doubt.joined) == (0, 0)


def test_questions_that_got_different_answers_about_one_picture_are_not_judged() -> None:
    def judge(one: Request, other: Request) -> float:
        raise AssertionError("it was asked")

    found = group_requests(
        [
            ask("Is it red?", "no", "a"), ask("Is it blue?", "no", "a"),
            ask("Is it red?", "yes", "b"), ask("Is it blue?", "no", "b"),
        ],
        judge=judge,
    )  # fmt: skip
    assert parted(found) == [0, 1, 2, 1]


def test_a_label_decides_and_takes_in_what_is_equivalent() -> None:
    requests = [
        ask("What is it?", "a cup", "a"), ask("What is it?", "a cup", "b"),
        ask("Name it.", "it is a cup", "c"), ask("What is it?", "a cup", "d"),
        ask("Name it.", "it is a cup", "e"),
    ]  # fmt: skip
    found = group_requests(requests, labels=["mine", None, "mine", None, None])
    assert parted(found) == [0, 0, 0, 0, 0]
    assert len(set(found.intent)) == 1
    apart = group_requests(requests, labels=["mine", None, None, "yours", None])
    assert parted(apart) == [0, 1, 2, 3, 2]
    assert apart.doubt.requests == 1  # of which cup the second is
    assert not apart.doubt.contradictions


def test_pairs_of_a_user_count_more_than_the_judge() -> None:
    requests = [
        ask("What colour?", "red", "a"), ask("Which colour?", "red", "a"), ask("Hue?", "red", "a"),
    ]  # fmt: skip
    found = group_requests(
        requests, judge=lambda one, other: 0.0, verdicts=[(0, 1, True), (1, 2, False)]
    )
    assert parted(found) == [0, 0, 1]
    assert not found.doubt.contradictions
    assert (found.doubt.judged, found.doubt.joined) == (3, 1)
    found = group_requests(requests, judge=lambda one, other: 1.0, verdicts=[(0, 1, False)])
    assert parted(found) == [0, 0, 0]  # through the third
    assert "are labelled as not equivalent" in found.doubt.contradictions[0]


def test_contradictions_are_told() -> None:
    cup = ask("What is it?", "a cup", "a")
    found = group_requests([cup, cup, ask("x", "y")], labels=["mine", "yours", None])
    assert parted(found) == [0, 0, 1]
    assert found.doubt.contradictions == (
        "requests that are the same have different groups: mine (0), yours (1)",
    )
    found = group_requests([cup, cup], verdicts=[(0, 1, False)])
    assert "requests 0 and 1 are labelled as not equivalent" in found.doubt.contradictions[0]
    other = ask("What is it?", "a mug", "b")
    found = group_requests([cup, other], labels=["mine", "yours"], verdicts=[(0, 1, True)])
    assert "the groups mine, yours are labelled as different" in found.doubt.contradictions[0]


def test_a_label_is_no_question() -> None:
    found = group_requests([ask("label", "x"), ask("y", "z")], labels=[None, "x"])
    assert parted(found) == [0, 1]


def test_a_set_too_large_to_look_at_stays_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ask(f"question {n}", "yes") for n in range(20)]
    requests += [ask("one", "no"), ask("other", "no")]
    monkeypatch.setattr(log_groups, "MOST_PAIRS", 191)
    assert len(set(group_requests(requests, judge=lambda one, other: 1.0).group)) == 2
    monkeypatch.setattr(log_groups, "MOST_PAIRS", 190)
    found = group_requests(requests, judge=lambda one, other: 1.0)
    assert len(set(found.group)) == 21
    assert (found.doubt.pairs, found.doubt.requests, found.doubt.judged) == (190, 20, 1)


ASKED = st.builds(
    ask,
    st.sampled_from(["what", "which?", "Which", "is it", None]),
    st.sampled_from(["yes", "no.", "No", "red"]),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["s", "t"]),
)


def judge(one: Request, other: Request) -> float:
    return float({normalised(one.text), normalised(other.text)} == {"what", "which"})


@settings(max_examples=60, deadline=None)
@given(st.lists(ASKED, max_size=14), st.randoms(use_true_random=False))
def test_groups_are_those_of_the_requests_not_of_their_order(
    requests: list[Request], random: object
) -> None:
    order = np.random.default_rng(len(requests)).permutation(len(requests))
    shuffled = group_requests([requests[n] for n in order], judge=judge)
    found = group_requests(requests, judge=judge)
    assert parted(_taken(found, order)) == parted(shuffled)
    assert shuffled.doubt.requests == found.doubt.requests


def _taken(groups: Groups, order: Sequence[int]) -> Groups:
    return Groups([groups.group[n] for n in order], groups.intent, groups.doubt)


@settings(max_examples=60, deadline=None)
@given(st.lists(ASKED, max_size=14))
def test_repeats_are_equivalent_and_equivalents_have_one_answer(requests: list[Request]) -> None:
    found = group_requests(requests, judge=judge)
    group_of: dict[object, str] = {}
    said: dict[str, set[str]] = {}
    for request, group in zip(requests, found.group, strict=True):
        same = (request.scope["model"], request.tags["picture"], normalised(request.text))
        assert group_of.setdefault(same, group) == group
        said.setdefault(group, set()).add(normalised(request.response))
    if found.doubt.answered_otherwise == 0:
        assert all(len(answers) == 1 for answers in said.values())


def test_pairs_in_doubt_are_named_those_of_most_requests_first() -> None:
    def asked(text: str) -> Request:
        return Request(image=b"x", text=text, response="yes", tags={"picture": "p"})

    requests = [asked(t) for t in ("is it red?", "is it round?", "is it round?", "red, is it?")]
    doubt = group_requests(requests).doubt
    pairs = [{requests[n].text for n in pair} for pair in doubt.examples]
    assert len(pairs) == doubt.pairs == 3
    assert pairs[2] == {"is it red?", "red, is it?"}  # of two requests, the others of three
