from __future__ import annotations

import numpy as np
import pytest

from keynet.evaluation import isometry
from keynet.evaluation.isometry import (
    PairedVectors,
    isometry_records,
    relative_distortion,
    sampled_pairs,
)
from keynet.evaluation.records import Record, Sheet

SHEET = Sheet("flickr8k", "test", "all", "affine", None)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def by_metric(records: list[Record]) -> dict[str, Record]:
    return {r.metric: r for r in records}


def rotation(size: int) -> np.ndarray:
    return np.linalg.qr(normal(size, size, seed=9))[0]


def test_distances_by_hand() -> None:
    """Pictures along the axes, texts along the negative ones."""
    found = by_metric(isometry_records(PairedVectors(3 * np.eye(8), -np.eye(8)), SHEET))
    assert found["distance_within_image"].value == pytest.approx(2**0.5)
    assert found["distance_within_text"].value == pytest.approx(2**0.5)
    assert found["distance_across"].value == pytest.approx(2**0.5)
    assert found["distance_of_pairs"].value == pytest.approx(2)
    assert found["distortion_across"].value == pytest.approx(0, abs=1e-6)
    assert found["distance_across"].n == 28
    assert found["distance_of_pairs"].n == 8
    assert {r.unit for m, r in found.items() if m.startswith("distance")} == {"distance"}


def test_relative_distortion_by_hand() -> None:
    changed, reference = np.array([1.0, 3.0]), np.array([1.0, 1.0])
    scale = 4 / 10  # of least squares: (1 + 3) / (1 + 9)
    expected = (abs(scale - 1) + abs(3 * scale - 1)) / 2
    assert relative_distortion(changed, reference) == pytest.approx(expected)
    assert relative_distortion(7 * reference, reference) == pytest.approx(0)
    assert relative_distortion(0 * reference, reference) == 1
    twice = relative_distortion(np.array([1.0, 3.0, 3.0]), np.ones(3))
    assert relative_distortion(changed, reference, np.array([1.0, 2.0])) == pytest.approx(twice)


def test_a_rotation_distorts_nothing_and_other_maps_do() -> None:
    before = PairedVectors(normal(30, 6), normal(30, 4, seed=1))
    turned = PairedVectors(before.image @ rotation(6), before.text)
    found = by_metric(isometry_records(turned, SHEET, before))
    assert found["distortion_within_image"].value == pytest.approx(0, abs=1e-5)
    assert found["distortion_within_text"].value == 0
    squeezed = PairedVectors(before.image * [5, 1, 1, 1, 1, 0.2], before.text)
    found = by_metric(isometry_records(squeezed, SHEET, before))
    assert (found["distortion_within_image"].value or 0) > 0.1
    assert (found["distortion_across"].value or 0) > 0.1


def test_texts_that_lie_as_their_pictures_do_have_no_distortion_across() -> None:
    image = normal(30, 6)
    found = by_metric(isometry_records(PairedVectors(image, image @ rotation(6)), SHEET))
    assert found["distortion_across"].value == pytest.approx(0, abs=1e-5)
    assert (found["distance_of_pairs"].value or 0) > 0.5  # isometric, and yet not aligned
    assert (found["distortion_shuffled"].value or 0) > 0.1


def test_spaces_that_share_nothing_are_distorted_as_if_shuffled() -> None:
    image, text = normal(200, 20), normal(200, 12, seed=1)
    found = by_metric(isometry_records(PairedVectors(image, text), SHEET))
    across, shuffled = (found[f"distortion_{name}"].value for name in ("across", "shuffled"))
    assert across == pytest.approx(shuffled, rel=0.05)
    found = by_metric(isometry_records(PairedVectors(image, image[:, :12]), SHEET))
    across, shuffled = (found[f"distortion_{name}"].value for name in ("across", "shuffled"))
    assert across is not None and shuffled is not None and across < 0.8 * shuffled


def test_the_order_of_photographs_and_their_lengths_do_not_matter() -> None:
    image, text = normal(30, 6), normal(30, 6, seed=1)
    order = np.random.default_rng(2).permutation(30)
    before = PairedVectors(normal(30, 5, seed=3), normal(30, 7, seed=4))
    found = by_metric(isometry_records(PairedVectors(image, text), SHEET, before))
    other = PairedVectors(image[order] * np.arange(1, 31)[:, None], text[order])
    turned = PairedVectors(before.image[order], 2 * before.text[order])
    for metric, record in by_metric(isometry_records(other, SHEET, turned)).items():
        if metric == "distortion_shuffled":  # of another shuffle
            continue
        assert record.value == pytest.approx(found[metric].value, rel=1e-5), metric


def test_what_cannot_be_given_says_why() -> None:
    found = by_metric(isometry_records(PairedVectors(normal(9, 6), normal(9, 4)), SHEET))
    for metric in ("distance_across", "distance_of_pairs"):
        assert found[metric].value is None
        assert found[metric].note == "image is 6 wide, text 4: no common space"
    for metric in ("distortion_within_image", "distortion_within_text"):
        assert found[metric].value is None
        assert "nothing to compare with" in found[metric].note
    assert found["distortion_across"].value is not None


def test_pairs_at_distance_zero_are_left_out_and_counted() -> None:
    image = normal(9, 6)
    image[1] = image[0]
    found = by_metric(isometry_records(PairedVectors(image, normal(9, 6, seed=1)), SHEET))
    across = found["distortion_across"]
    assert (across.n, across.note) == (35, "1 pairs at distance 0 left out")
    assert across.value is not None and np.isfinite(across.value)
    same = PairedVectors(np.ones((9, 6), np.float32), normal(9, 6))
    across = by_metric(isometry_records(same, SHEET))["distortion_across"]
    assert (across.value, across.note) == (None, "all distances to compare with are 0")


def test_intervals_hold_the_value_and_shrink_with_photographs() -> None:
    def width(count: int) -> float:
        before = PairedVectors(normal(count, 6), normal(count, 6, seed=1))
        after = PairedVectors(before.image * [3, 1, 1, 1, 1, 1], before.text)
        records = isometry_records(after, SHEET, before)
        for r in records:
            assert r.value is not None and r.low is not None and r.high is not None
            assert r.low <= r.value <= r.high, r.metric
        across = by_metric(records)["distance_across"]
        return (across.high or 0) - (across.low or 0)

    assert width(150) < 0.6 * width(30)


@pytest.mark.parametrize(("count", "most"), [(9, 1000), (60, 200), (500, 2000)])
def test_pairs_are_distinct_and_bounded(count: int, most: int) -> None:
    i, j = sampled_pairs(count, most, seed=3)
    total = count * (count - 1) // 2
    assert len(set(zip(i.tolist(), j.tolist(), strict=True))) == min(most, total)
    assert (j >= 0).all() and (j < i).all() and (i < count).all()
    again = sampled_pairs(count, most, seed=3)
    assert (i == again[0]).all() and (j == again[1]).all()
    if total > most:
        assert (sampled_pairs(count, most, seed=4)[0] != i).any()


def test_pair_numbers_of_a_large_set_are_decoded_exactly() -> None:
    count = 200_000
    i, j = sampled_pairs(count, 5000, seed=0)
    assert (j >= 0).all() and (j < i).all() and (i < count).all()
    assert i.max() > 0.99 * count


def test_a_sample_is_near_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isometry, "RESAMPLES", 10)
    monkeypatch.setattr(isometry, "BLOCK", 7)
    vectors = PairedVectors(normal(100, 6), normal(100, 6, seed=1))
    whole = by_metric(isometry_records(vectors, SHEET))
    part = by_metric(isometry_records(vectors, SHEET, max_pairs=1000))
    assert part["distance_across"].n == 1000
    for metric in ("distance_within_image", "distance_across", "distortion_across"):
        assert part[metric].value == pytest.approx(whole[metric].value, rel=0.05)


def test_unsound_vectors_are_refused() -> None:
    good = PairedVectors(normal(9, 6), normal(9, 6))
    spoilt = good.image.copy()
    spoilt[4] = 0
    with pytest.raises(ValueError, match="image row 4 is zero or not finite"):
        isometry_records(PairedVectors(spoilt, good.text), SHEET)
    spoilt[4] = np.nan
    with pytest.raises(ValueError, match="before: text row 4 is zero or not finite"):
        isometry_records(good, SHEET, PairedVectors(good.image, spoilt))
    with pytest.raises(ValueError, match="9 rows of image, 8 of text"):
        isometry_records(PairedVectors(good.image, good.text[:8]), SHEET)
    with pytest.raises(ValueError, match="7 photographs, at least 8"):
        isometry_records(PairedVectors(good.image[:7], good.text[:7]), SHEET)
    with pytest.raises(ValueError, match="9 photographs after, 8 before"):
        isometry_records(good, SHEET, PairedVectors(good.image[:8], good.text[:8]))
    with pytest.raises(ValueError, match=r"text has shape \(9,\)"):
        isometry_records(PairedVectors(good.image, good.text[:, 0]), SHEET)
