from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable

import easy_vqa
import numpy as np
import pytest

import data.easy_vqa
from data.easy_vqa import PHRASINGS, EasyVQA, held_out_texts, parse_question
from data.requests import CAPTION, CaptionedSource
from keynet.types import Request

SPLITS = ("train", "calibration", "test")


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Request]]:
    return {split: EasyVQA().requests(split) for split in SPLITS}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return sorted(set(easy_vqa.get_train_questions()[0]) | set(easy_vqa.get_test_questions()[0]))


def test_counts_of_the_package(
    splits: dict[str, list[Request]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(splits["test"]) == 9673
    monkeypatch.setattr(data.easy_vqa, "HELD_OUT", 0)
    whole = [*EasyVQA().requests("train"), *EasyVQA().requests("calibration")]
    assert len(whole) == 38_575
    assert len({r.tags["picture"] for r in whole}) == 4000
    assert len({r.tags["picture"] for r in splits["test"]}) == 1000


def test_all_107_texts_parse(texts: list[str]) -> None:
    parsed = {text: parse_question(text) for text in texts}
    assert len(texts) == 107
    assert {phrasing for phrasing, *_ in parsed.values()} == set(range(len(PHRASINGS)))
    families = Counter(family for _, family, _, _ in parsed.values())
    assert families == {"is": 88, "color": 8, "shape": 11}
    of_yes_or_no = [found for found in parsed.values() if found[1] == "is"]
    assert len(set(of_yes_or_no)) == 88  # (phrasing, family, negated, argument) is the text


@pytest.mark.parametrize(
    ("text", "family", "negated", "argument"),
    [
        ("is there a red shape in the image?", "is", False, "red shape"),
        ("is there a red shape?", "is", False, "red shape"),
        ("is there not a circle in the image?", "is", True, "circle"),
        ("is no circle present?", "is", True, "circle"),
        ("what color is the shape?", "color", False, ""),
        ("what is the color of the circle?", "color", False, ""),
        ("what is the blue shape?", "shape", False, ""),
        ("what shape is present?", "shape", False, ""),
    ],
)
def test_questions_by_hand(text: str, family: str, negated: bool, argument: str) -> None:
    assert parse_question(text)[1:] == (family, negated, argument)


@pytest.mark.parametrize("text", ["", "is it red?", "is there a circle", "IS THERE A CIRCLE?"])
def test_a_foreign_question_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an easy-VQA question: '"):
        parse_question(text)


def test_two_phrasings_of_each_intent_are_held_out(
    splits: dict[str, list[Request]], texts: list[str]
) -> None:
    held_out = held_out_texts(texts, seed=0)
    by_intent: dict[tuple[str, bool, str], list[bool]] = defaultdict(list)
    for text in texts:
        by_intent[parse_question(text)[1:]].append(text in held_out)
    assert len(by_intent) == 24
    for (family, *_), held in by_intent.items():
        assert sum(held) == 2
        assert len(held) == {"is": 4, "color": 8, "shape": 11}[family]
    trained = {request.text for request in splits["train"]}
    assert trained == set(texts) - held_out
    assert {r.text for r in splits["calibration"]} == {r.text for r in splits["test"]} == set(texts)


def test_which_phrasings_are_held_out_differs_by_argument_and_by_seed(texts: list[str]) -> None:
    held_out = held_out_texts(texts, seed=0)
    by_argument: dict[str, set[int]] = defaultdict(set)
    for text in held_out:
        phrasing, family, negated, argument = parse_question(text)
        if family == "is" and not negated:
            by_argument[argument].add(phrasing)
    assert len(set(map(frozenset, by_argument.values()))) > 1
    assert held_out != held_out_texts(texts, seed=1)
    assert held_out == held_out_texts(reversed(texts), seed=0)


def test_a_group_is_intent_and_answer(splits: dict[str, list[Request]]) -> None:
    for requests in splits.values():
        of_group: dict[str | None, set[tuple[str | None, str | None]]] = defaultdict(set)
        for request in requests:
            of_group[request.group].add((request.intent, request.response))
        assert all(len(pairs) == 1 for pairs in of_group.values())
        assert len(set.union(*of_group.values())) == len(of_group)


def test_an_intent_is_the_question_in_any_phrasing(splits: dict[str, list[Request]]) -> None:
    """22 yes-or-no intents, and colour and shape: a picture has one shape, however it is called."""
    intents: dict[str | None, set[tuple[str, str, str]]] = defaultdict(set)
    for r in splits["test"]:
        intents[r.intent].add((r.tags["family"], r.tags["negated"], r.tags["argument"]))
    assert all(len(meanings) == 1 for meanings in intents.values())
    assert len(set.union(*intents.values())) == len(intents) == 24
    assert len({r.group for r in splits["test"]}) == 55


def test_negation_flips_the_answer(splits: dict[str, list[Request]]) -> None:
    answers: dict[tuple[str, str], dict[str, set[str | None]]] = defaultdict(
        lambda: defaultdict(set)
    )
    for r in splits["calibration"]:
        if r.tags["family"] == "is":
            answers[r.tags["picture"], r.tags["argument"]][r.tags["negated"]].add(r.response)
    both = [found for found in answers.values() if len(found) == 2]
    assert len(both) > 500
    assert all(found["0"] | found["1"] == {"yes", "no"} for found in both)
    assert all(len(found["0"]) == len(found["1"]) == 1 for found in both)


@pytest.mark.parametrize("fold", ["test", "dev"])
def test_no_picture_is_in_two_splits(fold: str) -> None:
    source = EasyVQA(fold=fold)
    requests = {split: source.requests(split) for split in SPLITS}
    names = {split: {r.tags["picture"] for r in requests[split]} for split in SPLITS}
    for one, other in (("train", "calibration"), ("train", "test"), ("calibration", "test")):
        assert not names[one] & names[other]
    sizes = {split: len(found) for split, found in names.items()}
    held = len({r.tags["picture"] for r in EasyVQA().requests("calibration")})
    assert held >= 800
    # A few training pictures have questions in held-out phrasings only.
    assert 0.98 * (4000 - held) < sizes["train"] <= 4000 - held
    expected = (held, 1000) if fold == "test" else (held // 2, held // 2)
    assert (sizes["calibration"], sizes["test"]) == expected


def test_the_dev_fold_never_touches_the_test_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched() -> None:
        raise AssertionError("test pictures read")

    monkeypatch.setattr(easy_vqa, "get_test_questions", touched)
    monkeypatch.setattr(easy_vqa, "get_test_image_paths", touched)
    for split in SPLITS:
        requests = EasyVQA(fold="dev").requests(split)
        assert {r.tags["picture"].split("/")[0] for r in requests} == {"train"}


def test_the_dev_fold_trains_on_what_the_test_fold_trains_on(
    splits: dict[str, list[Request]],
) -> None:
    assert EasyVQA(fold="dev").requests("train") == splits["train"]


def test_the_seed_cuts_the_pictures(splits: dict[str, list[Request]]) -> None:
    assert EasyVQA(seed=0).requests("calibration") == splits["calibration"]
    other = EasyVQA(seed=1)
    assert {r.entity for r in other.requests("calibration")} != {
        r.entity for r in splits["calibration"]
    }
    assert other.requests("test") == splits["test"]


def test_what_every_source_promises(splits: dict[str, list[Request]]) -> None:
    for requests in splits.values():
        for r in requests:
            assert None not in (r.image, r.text, r.group, r.entity, r.intent, r.response)
            assert {"picture", "family", "phrasing", "negated", "argument"} <= set(r.tags)
    assert isinstance(splits["test"][0].image, bytes)
    assert splits["test"][0].image.startswith(b"\x89PNG")


def test_a_caption_is_the_colour_and_shape_that_the_picture_s_questions_have_as_answers(
    splits: dict[str, list[Request]],
) -> None:
    for split in ("train", "calibration"):
        answered: dict[object, dict[str, str]] = defaultdict(dict)
        for r in splits[split]:
            answered[r.image][r.tags["family"]] = str(r.response)
        captions = EasyVQA().captions(split)  # type: ignore[arg-type]
        assert len({r.tags["picture"] for r in captions}) == len(captions) > 100
        for r in captions:
            assert r.text == f"a {answered[r.image]['color']} {answered[r.image]['shape']}"
            assert r.entity == r.response == r.text and r.group == r.intent == f"{CAPTION}|{r.text}"
        # Every picture that is asked for both has one.
        assert {r.image for r in captions} == {
            image for image, found in answered.items() if {"color", "shape"} <= found.keys()
        }
        pictures = {r.tags["picture"] for r in splits[split]}
        assert {r.tags["picture"] for r in captions} <= pictures
        assert len({r.text for r in captions}) == 8 * 3  # colours, shapes
    assert isinstance(EasyVQA(), CaptionedSource)


def closed_loop(
    requests: list[Request], key: Callable[[Request], Hashable], seed: int
) -> tuple[float, float, float]:
    """(share served, of those wrong by response, wrong by group) in one shuffled pass."""
    store: dict[Hashable, Request] = {}
    served = wrong_response = wrong_group = 0
    for index in np.random.default_rng(seed).permutation(len(requests)):
        request = requests[index]
        found = store.setdefault(key(request), request)
        if found is not request:
            served += 1
            wrong_response += found.response != request.response
            wrong_group += found.group != request.group
    return served / len(requests), wrong_response / served, wrong_group / served


def test_exact_text_is_served_and_wrong(splits: dict[str, list[Request]]) -> None:
    found = [closed_loop(splits["test"], lambda r: r.text, seed) for seed in range(5)]
    served, wrong_response, wrong_group = np.mean(found, axis=0)
    assert served == pytest.approx(1 - 107 / 9673)
    # Issue 2: 98.9 % served, 42 % wrong (orders differ: standard deviation 1.8 points).
    # One text is one intent: wrong by response is wrong by group.
    assert wrong_response == pytest.approx(0.42, abs=0.03)
    assert wrong_group == wrong_response


def test_exact_picture_is_served_and_wrong(splits: dict[str, list[Request]]) -> None:
    found = [closed_loop(splits["test"], lambda r: r.tags["picture"], seed) for seed in range(5)]
    served, wrong_response, wrong_group = np.mean(found, axis=0)
    assert served == pytest.approx(1 - 1000 / 9673)
    # Issue 2: 89.7 % served, 70 % wrong by response, 95 % by group.
    assert wrong_response == pytest.approx(0.705, abs=0.02)
    assert wrong_group == pytest.approx(0.95, abs=0.01)


def test_the_oracle_serves_all_but_the_first_of_each_group(
    splits: dict[str, list[Request]],
) -> None:
    served, wrong_response, wrong_group = closed_loop(splits["test"], lambda r: r.group, 0)
    assert served == pytest.approx(0.994, abs=5e-4)  # issue 2
    assert wrong_response == wrong_group == 0


def test_an_unknown_fold() -> None:
    with pytest.raises(ValueError, match=r"fold='tset': expected test or dev"):
        EasyVQA(fold="tset")


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "easy_vqa", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'keynet-cache\[demo\]'"):
        EasyVQA().requests("test")
