from __future__ import annotations

import io
import logging

import pytest
from PIL import Image

from data.photograph_splits import check_for_test, cut_test, joined_copies, without_tested
from data.photographs import Photograph
from data.requests import Split


def photograph(
    name: str, *captions: str, shows: str | None = None, split: Split | None = None
) -> Photograph:
    buffer = io.BytesIO()
    shade = sum(ord(letter) for letter in shows or name) % 256
    Image.new("L", (4 + len(shows or name), 4), shade).save(buffer, "PNG")
    return Photograph(name, buffer.getvalue(), captions or ("a dog",), "f.json", split)


def names(photographs: list[Photograph]) -> list[str]:
    return [p.name for p in photographs]


def test_copies_are_one_photograph_with_the_captions_of_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = [
        photograph("a", "a dog", "a dog"),
        photograph("b", "a cat"),
        photograph("c", "a puppy", "a dog", "a puppy", shows="a"),
    ]
    with caplog.at_level(logging.WARNING):
        found = joined_copies(given)
    assert found == [photograph("a", "a dog", "a dog", "a puppy"), given[1]]
    (record,) = caplog.records
    assert record.getMessage() == (
        "1 photographs are exact copies (c of a): each is taken once, with the captions of all"
    )


def test_without_copies_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    given = [photograph("a"), photograph("b")]
    assert joined_copies(given) == given
    assert without_tested(given, [photograph("c")]) == given
    assert not caplog.records


@pytest.mark.parametrize("splits", [("train", "test"), ("test", "train")])
def test_a_copy_of_a_tested_photograph_is_for_test(splits: tuple[Split, Split]) -> None:
    one, other = (photograph(n, shows="x", split=s) for n, s in zip("ab", splits, strict=True))
    assert [p.split for p in joined_copies([one, other])] == ["test"]


def test_the_cut_follows_from_seed_and_name_alone() -> None:
    given = [photograph(f"p{number}") for number in range(50)]
    training, test = cut_test(given, 0.2, 0)
    assert 5 <= len(test) <= 15
    assert sorted(names(training) + names(test)) == sorted(names(given))
    assert names(cut_test(given[::-1], 0.2, 0)[1]) == names(test)[::-1]
    assert set(names(cut_test(given, 0.4, 0)[1])) > set(names(test))
    assert set(names(cut_test(given, 0.2, 1)[1])) != set(names(test))


def test_no_photograph_changes_sides_when_others_are_added() -> None:
    given = [photograph(f"p{number}") for number in range(200)]
    training, test = ({*names(side)} for side in cut_test(given, 0.2, 0))
    for count in (50, 51, 53, 60, 100):
        some = [{*names(side)} for side in cut_test(given[:count], 0.2, 0)]
        assert some[0] <= training and some[1] <= test


def test_the_files_to_test_on_may_not_say_that_some_are_for_training() -> None:
    tested = [photograph("a", split="test"), photograph("b")]
    check_for_test(tested)
    with pytest.raises(
        ValueError, match=r"data\.source\.test says .* 1 photographs are not for test \(c\); .*null"
    ):
        check_for_test([*tested, photograph("c", split="train")])


def test_splits_that_the_files_say_are_kept() -> None:
    said: list[Split] = ["train", "test", "train", "train", "test"]
    given = [photograph(f"p{number}", split=split) for number, split in enumerate(said)]
    training, test = cut_test(given, 0.9, 0)
    assert (names(training), names(test)) == (["p0", "p2", "p3"], ["p1", "p4"])
    with pytest.raises(ValueError, match=r"none is for test; name a file .*data\.source\.test"):
        cut_test(
            [p for p in given if p.split == "train"] + [photograph("q", split="train")], 0.2, 0
        )


def test_too_few_to_cut() -> None:
    with pytest.raises(ValueError, match=r"has 1 photographs, too few .* give at least 4"):
        cut_test([photograph("a")], 0.2, 0)
    assert len(cut_test([photograph(f"p{n}") for n in range(4)], 0.01, 0)[1]) == 1


def test_a_picture_that_is_tested_on_is_not_trained_on(caplog: pytest.LogCaptureFixture) -> None:
    training = [photograph("a"), photograph("b"), photograph("c")]
    test = [photograph("x", shows="b"), photograph("y", shows="c")]
    with caplog.at_level(logging.WARNING):
        assert names(without_tested(training, test)) == ["a"]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "2 photographs of data.source.train are in data.source.test, too (b, there x; c, there y)"
    )


def test_one_name_for_two_pictures() -> None:
    with pytest.raises(
        ValueError, match=r"1 names are in .* for other pictures, such as a; rename"
    ):
        without_tested([photograph("a")], [photograph("a", shows="other")])
