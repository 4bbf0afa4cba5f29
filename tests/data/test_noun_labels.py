from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from data.captioned import NOUNS, choose_nouns, label_nouns


def five(*captions: str) -> list[str]:
    return [*captions, *["Something ."] * (5 - len(captions))]


@pytest.mark.parametrize(
    ("captions", "noun", "expected"),
    [
        (five("A dog .", "DOGS run", "the dog's toy"), "dog", True),
        (five("A dog .", "Two puppies"), "dog", None),  # two of five name it
        (five("A greyhound .", "a puppy", "A dog"), "dog", True),
        (five("A hot dog .", "a dog", "one dog", "dog"), "dog", None),  # may be food
        (five("A man .", "A woman .", "Men ."), "dog", False),
        (five("An animal ."), "dog", None),
        (five("A dogged cart ."), "dog", False),  # whole words only
        (five("A man .", "A man .", "A guy ."), "man", None),
        (five("A man .", "A man .", "Men .", "A person ."), "man", True),
        (five("A guy ."), "man", None),
        (five("People ."), "man", None),
        (five("A climber ."), "man", None),
        (five("A cat ."), "man", False),
        (five("A bike .", "a red bicycle", "Bikes"), "bicycle", True),
        (five("A bike .", "a dirt bike", "Bikes"), "bicycle", None),
        (five("A bike .", "a bike", "A motorcycle", "a bike"), "bicycle", None),
        (five("A cyclist ."), "bicycle", None),
        (five("Ocean ."), "water", None),
        (five("Swimming ."), "water", None),  # swim*
        (five("A car ."), "water", False),
        (five("Ice cream .", "ice", "ice", "ice"), "ice", None),
    ],
)
def test_labels_by_hand(captions: list[str], noun: str, expected: bool | None) -> None:
    assert label_nouns(captions).get(noun) is expected


def test_fewer_than_five_captions_do_not_suffice() -> None:
    assert label_nouns(["A dog ."] * 4) == {}
    assert label_nouns(["A dog ."] * 3 + ["A cat ."] * 4)["dog"] is True


def test_the_nouns_are_well_formed() -> None:
    assert 75 <= len(NOUNS) <= 90
    for noun, roles in NOUNS.items():
        assert set(roles) == {"article", "forms", "unsafe", "clash"}
        assert roles["article"] in ("", "a", "an", "a pair of")
        assert (roles["article"] == "an") == (noun[0] in "aeiou" and roles["article"] != "")
        assert noun in roles["forms"] or f"{noun}s" in roles["forms"] or noun == "staircase"
        assert not set(roles["forms"]) & set(roles["clash"])
        for term in (*roles["forms"], *roles["unsafe"], *roles["clash"]):
            words = term.removesuffix("*").split(" ")
            assert len(words) <= 2, term
            assert all(word.isalpha() and word.islower() for word in words), term
            assert not term.endswith("*") or (len(words) == 1 and len(term) > 2), term


@pytest.mark.parametrize("questions", [0, 1, 3, 4])
def test_as_many_yes_as_no_for_every_noun(questions: int) -> None:
    rng = np.random.default_rng(0)
    nouns = list(NOUNS)[:9]
    labels = [
        {noun: bool(rng.random() < 0.3) for noun in nouns if rng.random() < 0.8} for _ in range(300)
    ]
    for known in labels:
        known["dog"] = True  # never a no: not asked
    chosen = choose_nouns(labels, questions, rng)
    counts = Counter(pair for pairs in chosen for pair in pairs)
    assert all(counts[noun, True] == counts[noun, False] for noun in nouns)
    assert counts["dog", True] == 0
    for known, pairs in zip(labels, chosen, strict=True):
        assert len(pairs) == len(dict(pairs)) <= questions
        assert sum(shown for _, shown in pairs) <= (questions + 1) // 2
        assert all(known[noun] is shown for noun, shown in pairs)
    if questions:
        assert sum(map(len, chosen)) > 0.7 * questions * len(labels)


def test_a_yes_without_its_no_is_not_asked() -> None:
    """One photograph can only take one question: its no for one noun leaves the other without."""
    chosen = choose_nouns(
        [{"dog": True}, {"cat": True}, {"dog": False, "cat": False}], 1, np.random.default_rng(1)
    )
    counts = Counter(pair for pairs in chosen for pair in pairs)
    assert all(counts[noun, True] == counts[noun, False] for noun in ("dog", "cat"))
