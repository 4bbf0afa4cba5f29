"""Captions and photographs: ranks and figures by hand, what must not matter, what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from keynet.evaluation import captions
from keynet.evaluation.captions import (
    CaptionVectors,
    compared_records,
    gain_record,
    ranks,
    recall_records,
)
from keynet.evaluation.records import Record, Sheet

SHEET = Sheet("flickr8k", "validation", "all", "keynet", None)
# Three photographs along the axes; the last caption of the first is nearer to another.
HAND = CaptionVectors(
    np.eye(3, dtype=np.float32) * 2,
    np.array([[3, 2, 1], [1, 3, 2], [2, 2, 1], [0, 0, 5]], dtype=np.float32),
)
HAND_OF = np.array([0, 0, 1, 2])


def at_ranks(wanted: list[int], of: list[int], photographs: int = 12) -> CaptionVectors:
    """Photographs along the axes, and captions whose photographs come in at the ranks wanted."""
    text = np.zeros((len(of), photographs), dtype=np.float32)
    for row, rank, own in zip(text, wanted, of, strict=True):
        row[np.delete(np.arange(photographs), own)[: rank - 1]] = 2
        row[own] = 1
    return CaptionVectors(np.eye(photographs, dtype=np.float32), text)


def random(
    seed: int, photographs: int = 40, noise: float = 1.0
) -> tuple[CaptionVectors, np.ndarray]:
    """Two captions a photograph, each its vector and noise."""
    rng = np.random.default_rng(seed)
    of = np.repeat(np.arange(photographs), 2)
    image = rng.normal(size=(photographs, 8))
    text = image[of] + noise * rng.normal(size=(len(of), 8))
    return CaptionVectors(image.astype(np.float32), text.astype(np.float32)), of


def value(records: list[Record], subset: str, metric: str) -> float | None:
    (found,) = [r.value for r in records if (r.subset, r.metric) == (subset, metric)]
    return found


def test_ranks_by_hand_with_a_tie_counted_against() -> None:
    text_to_image, image_to_text = ranks(HAND, HAND_OF)
    assert text_to_image.tolist() == [1, 3, 2, 1]  # the third is as near to another photograph
    assert image_to_text.tolist() == [1, 2, 1]  # cosines .80, .67 after a stranger's .80, 1.0


def test_own_captions_do_not_stand_in_each_others_way() -> None:
    vectors = CaptionVectors(
        np.eye(2, dtype=np.float32), np.array([[1, 0], [1, 0], [1, 1]], dtype=np.float32)
    )
    assert ranks(vectors, np.array([0, 0, 1]))[1].tolist() == [1, 1]
    # The same words for both photographs cannot be told apart.
    assert ranks(vectors, np.array([0, 1, 0]))[0].tolist() == [1, 2, 2]
    assert ranks(vectors, np.array([0, 1, 0]))[1].tolist() == [2, 3]


def test_recalls_by_hand() -> None:
    records = recall_records(HAND, HAND_OF, SHEET)
    assert [(r.subset, r.metric, r.value, r.n) for r in records] == [
        ("text_to_image", "recall_at_1", 2 / 4, 4),
        ("text_to_image", "recall_at_10", 1.0, 4),
        ("image_to_text", "recall_at_1", 2 / 3, 3),
        ("image_to_text", "recall_at_10", 1.0, 3),
    ]
    assert [r.note for r in records] == [
        "", "any model has a recall of 1: no rank is worse than 3",
        "", "any model has a recall of 1: no rank is worse than 4",
    ]  # fmt: skip
    assert {(r.data, r.split, r.method, r.bits, r.unit) for r in records} == {
        ("flickr8k", "validation", "keynet", None, "share")
    }


def test_ten_is_the_last_rank_that_counts() -> None:
    vectors = at_ranks([1, 2, 10, 11] + [1] * 8, list(range(12)))
    records = recall_records(vectors, np.arange(12), SHEET)
    assert value(records, "text_to_image", "recall_at_1") == 9 / 12
    assert value(records, "text_to_image", "recall_at_10") == 11 / 12
    assert not any(r.note for r in records)


def test_perfect_vectors_find_everything() -> None:
    vectors, of = random(0, noise=0.0)
    for r in recall_records(vectors, of, SHEET):
        assert (r.value, r.low, r.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("scaled", [False, True])
def test_constant_vectors_find_nothing(scaled: bool) -> None:
    row = np.random.default_rng(0).normal(size=8).astype(np.float32)
    scale = np.exp2(np.arange(12) % 5 if scaled else np.zeros(12))[:, None]
    same = np.asarray(row * scale, dtype=np.float32)
    of = np.arange(12)
    assert ranks(CaptionVectors(same, same), of)[0].tolist() == [12] * 12
    for r in recall_records(CaptionVectors(same, same), of, SHEET):
        assert (r.value, r.low, r.high) == (0.0, 0.0, 0.0)


def test_norms_do_not_matter() -> None:
    vectors, of = random(1)
    tiny = CaptionVectors(vectors.image * np.float32(1e-30), vectors.text * np.float32(1e30))
    for got, expected in zip(ranks(tiny, of), ranks(vectors, of), strict=True):
        assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_captions_does_not_matter(seed: int) -> None:
    (mine, of), (other, _) = random(seed), random(seed, noise=2.0)
    order = np.random.default_rng(seed).permutation(len(of))

    def figures(at: np.ndarray) -> list[Record]:
        a, b = (v._replace(text=v.text[at]) for v in (mine, other))
        return [
            *recall_records(a, of[at], SHEET),
            *compared_records(a, b, of[at], SHEET, "teacher:t"),
            gain_record(a, b, of[at], SHEET, "other"),
        ]

    assert figures(order) == figures(np.arange(len(of)))


def test_the_size_of_a_block_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    (mine, of), (other, _) = random(0), random(0, noise=2.0)

    def figures() -> list[Record]:
        return [
            *recall_records(mine, of, SHEET), *compared_records(mine, other, of, SHEET, "t")
        ]  # fmt: skip

    whole = figures()
    for elements in (1, 3 * 40):  # one caption at a time, and three, which leaves a last of two
        monkeypatch.setattr(captions, "BLOCK_ELEMENTS", elements)
        assert figures() == whole


@pytest.mark.parametrize("seed", range(3))
def test_intervals_hold_their_values_and_come_out_the_same_twice(seed: int) -> None:
    (mine, of), (other, _) = random(seed, noise=2.0), random(seed, noise=3.0)

    def figures() -> list[Record]:
        return [
            *recall_records(mine, of, SHEET),
            *compared_records(mine, other, of, SHEET, "teacher:t"),
            gain_record(mine, other, of, SHEET, "other"),
        ]

    for r in figures():
        assert r.low is not None and r.value is not None and r.high is not None
        assert r.low < r.value < r.high
    assert figures() == figures()


def test_captions_are_drawn_with_their_photograph() -> None:
    # All fifty captions of one photograph hit, all of the other miss. Whole photographs drawn give
    # 0, 1/2 or 1, each end in a quarter of the resamples; captions drawn alone would give .4 to .6.
    text = np.repeat([[1.0, 0.0]], 100, axis=0).astype(np.float32)
    vectors = CaptionVectors(np.eye(2, dtype=np.float32), text)
    found = recall_records(vectors, np.repeat([0, 1], 50), SHEET)[0]
    assert (found.value, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 100)


def test_retention_and_gain_by_hand() -> None:
    of = list(range(12))
    student = at_ranks([1] * 8 + [10] + [11, 12, 11], of)  # finds 9
    teacher = at_ranks([1] * 7 + [11, 11] + [3, 3, 3], of)  # finds 10, of which 7 the same
    retention, _ = compared_records(student, teacher, np.array(of), SHEET, "teacher:t")
    assert retention.subset == "text_to_image:teacher:t"
    assert (retention.metric, retention.value, retention.n) == ("retention_at_10", 9 / 10, 12)
    assert retention.low is not None and retention.high is not None
    assert retention.low < 0.9 < retention.high
    gain = gain_record(student, teacher, np.array(of), SHEET, "teacher:t")
    assert (gain.subset, gain.metric, gain.unit) == (retention.subset, "recall_at_10_gain", "share")
    assert gain.value == pytest.approx(-1 / 12)
    assert gain.n == 12


def test_overlap_by_hand() -> None:
    rising = np.arange(1, 13, dtype=np.float32)
    axes, of = np.eye(12, dtype=np.float32), np.arange(12)

    def overlap(mine: np.ndarray, theirs: np.ndarray) -> Record:
        a, b = (CaptionVectors(axes, np.tile(v, (12, 1))) for v in (mine, theirs))
        return compared_records(a, b, of, SHEET, "t")[1]

    opposite = overlap(rising, rising[::-1])  # 2 to 11 and 0 to 9
    assert (opposite.metric, opposite.value, opposite.n) == ("overlap_at_10", 8 / 10, 12)
    assert (opposite.low, opposite.high, opposite.note) == (0.8, 0.8, "")
    assert overlap(rising, rising * 3).value == 1.0
    level = np.ones(12, dtype=np.float32)
    assert overlap(level, rising).value == 8 / 10  # equally near: those of lower index, 0 to 9
    assert overlap(level, rising[::-1]).value == 1.0


def test_fewer_than_ten_photographs_are_all_compared_and_said_to_be() -> None:
    other = HAND._replace(text=HAND.text[:, ::-1].copy())
    note = "only 3 photographs: any two models name them all"
    for r in compared_records(HAND, other, HAND_OF, SHEET, "t"):
        assert (r.value, r.low, r.high, r.note) == (1.0, 1.0, 1.0, note)
    gain = gain_record(HAND, other, HAND_OF, SHEET, "t")
    assert (gain.value, gain.note) == (0.0, "any model has a recall of 1: no rank is worse than 3")


def test_a_model_gains_nothing_over_itself_and_keeps_all() -> None:
    vectors, of = random(0)
    gain = gain_record(vectors, vectors, of, SHEET, "keynet")
    assert (gain.value, gain.low, gain.high) == (0.0, 0.0, 0.0)
    for r in compared_records(vectors, vectors, of, SHEET, "teacher:t"):
        assert (r.value, r.low, r.high) == (1.0, 1.0, 1.0)


def test_the_gain_is_paired() -> None:
    # Both miss the same half; only one caption tells them apart. Each recall alone is uncertain
    # by .15, their difference hardly.
    of = list(range(40))
    mine = at_ranks([1] * 20 + [11] * 20, of, 40)
    other = at_ranks([1] * 19 + [11] * 21, of, 40)
    gain = gain_record(mine, other, np.array(of), SHEET, "other")
    assert gain.value == 1 / 40
    assert gain.low == 0.0
    assert gain.high is not None and gain.high < 0.1
    alone = recall_records(mine, np.array(of), SHEET)[1]
    assert alone.low is not None and alone.low < 0.4


def test_gain_turned_round_changes_its_sign() -> None:
    (mine, of), (other, _) = random(2), random(2, noise=2.0)
    there = gain_record(mine, other, of, SHEET, "other")
    back = gain_record(other, mine, of, SHEET, "other")
    assert there.value is not None and there.low is not None and there.high is not None
    assert back.value == -there.value
    assert (back.low, back.high) == (pytest.approx(-there.high), pytest.approx(-there.low))


def test_no_retention_of_a_teacher_that_finds_nothing() -> None:
    of = np.arange(12)
    lost = CaptionVectors(np.ones((12, 4), np.float32), np.ones((12, 4), np.float32))
    retention, _ = compared_records(at_ranks([1] * 12, list(of)), lost, of, SHEET, "teacher:t")
    assert (retention.value, retention.low, retention.high, retention.n) == (None, None, None, 12)
    assert retention.note == "teacher:t finds no caption's photograph among its ten"


def test_resamples_without_a_hit_of_the_teacher_are_left_out_and_counted() -> None:
    of = list(range(12))
    teacher = at_ranks([1] + [11] * 11, of)  # absent from (11/12)^12 = 35 % of the resamples
    retention, _ = compared_records(
        at_ranks([1] * 12, of), teacher, np.array(of), SHEET, "teacher:t"
    )
    assert retention.value == 12.0
    words = retention.note.split()
    assert 300 < int(words[3]) < 400
    assert retention.note == (
        f"interval without the {words[3]} resamples in which teacher:t finds none"
    )


def test_student_and_teacher_may_differ_in_dimension() -> None:
    vectors, of = random(0)
    wide = CaptionVectors(*(np.pad(v, ((0, 0), (0, 5))) for v in vectors))
    retention, overlap = compared_records(vectors, wide, of, SHEET, "teacher:t")
    assert (retention.value, overlap.value) == (1.0, 1.0)


def changed(rows: np.ndarray, at: int, to: float) -> np.ndarray:
    rows = rows.copy()
    rows[at] = to
    return rows


NONE = np.zeros((0, 3), dtype=np.float32)


@pytest.mark.parametrize(
    ("vectors", "of", "message"),
    [
        (HAND._replace(image=NONE), HAND_OF, r"image has shape \(0, 3\); give a non-empty matrix"),
        (HAND._replace(text=NONE), HAND_OF, r"text has shape \(0, 3\); give a non-empty matrix"),
        (HAND._replace(text=HAND.text[0]), HAND_OF, r"text has shape \(3,\)"),
        (HAND._replace(text=HAND.text[:, :2] + 1), HAND_OF, "image has 3 dimensions, .*text 2"),
        (HAND, HAND_OF[:3], r"picture_of is int64 \(3,\) for 4 captions"),
        (HAND, HAND_OF[:, None], r"picture_of is int64 \(4, 1\) for 4 captions"),
        (HAND, HAND_OF.astype(float), "picture_of is float64 .* give one signed integer a caption"),
        (
            HAND,
            np.array([0, 0, 1, 3]),
            r"picture_of\[3\] is 3, but there are 3 photographs; give 0 to 2",
        ),
        (HAND, np.array([0, -1, 1, 2]), r"picture_of\[1\] is -1"),
        (HAND, np.array([0, 0, 2, 2]), "photograph 1 has no caption"),
        (HAND._replace(text=changed(HAND.text, 2, np.nan)), HAND_OF, "text row 2 is not finite"),
        (HAND._replace(image=changed(HAND.image, 1, np.inf)), HAND_OF, "image row 1 is not finite"),
        (HAND._replace(text=changed(HAND.text, 3, 0)), HAND_OF, "text row 3 is zero"),
        (HAND._replace(image=changed(HAND.image, 0, 0)), HAND_OF, "image row 0 is zero"),
    ],
)
def test_bad_input_is_named_in_one_line(
    vectors: CaptionVectors, of: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as alone:
        recall_records(vectors, of, SHEET)
    with pytest.raises(ValueError, match=message):
        compared_records(vectors, HAND, of, SHEET, "teacher:t")
    with pytest.raises(ValueError, match=message):
        gain_record(HAND, vectors, of, SHEET, "other")
    assert "\n" not in str(alone.value)


def test_an_error_says_whose_vectors_it_means() -> None:
    broken = HAND._replace(text=changed(HAND.text, 2, np.nan))
    with pytest.raises(ValueError, match="teacher:t text row 2 is not finite"):
        compared_records(HAND, broken, HAND_OF, SHEET, "teacher:t")
    with pytest.raises(ValueError, match="keynet_b text row 2 is not finite"):
        gain_record(broken, HAND, HAND_OF, replace(SHEET, method="keynet_b"), "other")


def test_other_photographs_or_captions_are_refused() -> None:
    more = HAND._replace(image=np.ones((4, 3), dtype=np.float32))
    message = "keynet has 3 photographs and 4 captions, teacher:t 4 and 4; encode the same"
    with pytest.raises(ValueError, match=message):
        compared_records(HAND, more, HAND_OF, SHEET, "teacher:t")
    with pytest.raises(ValueError, match="other 3 and 2"):
        gain_record(HAND, HAND._replace(text=HAND.text[:2]), HAND_OF, SHEET, "other")
