from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from keynet.evaluation.cuts import Cut
from keynet.evaluation.fixed_store import Served
from keynet.evaluation.labels import Labels
from keynet.evaluation.modality_drift import (
    Drift,
    bucket_bits,
    bucket_load,
    degraded,
    drift_records,
    misspelt,
    point_threshold,
    running_confidence,
    weights_of,
)
from keynet.types import Request

BLOCKS = {"image": (0, 32), "text": (32, 64)}
GROUPS = 150


def test_even_weights_alternate_and_others_are_in_proportion() -> None:
    assert bucket_bits(BLOCKS, {"image": 1, "text": 1}, 6) == [0, 32, 1, 33, 2, 34]
    bits = bucket_bits(BLOCKS, {"image": 3, "text": 1}, 8)
    assert sum(bit < 32 for bit in bits) == 6
    assert bucket_bits(BLOCKS, {"image": 0, "text": 1}, 3) == [32, 33, 34]
    every = bucket_bits(BLOCKS, {"image": 9, "text": 1}, 64)
    assert sorted(every) == list(range(64))


@pytest.mark.parametrize(
    ("weights", "count"),
    [({"image": 1}, 4), ({"image": 0, "text": 0}, 4), ({"image": 0, "text": 1}, 33)],
)
def test_bits_that_do_not_suffice(weights: dict[str, float], count: int) -> None:
    with pytest.raises(ValueError, match=r"expected 1 to 32|give each of image, text one"):
        bucket_bits(BLOCKS, weights, count)


def test_load_of_buckets_by_hand() -> None:
    # Three bits of eight buckets: six codes in one, two in another; the mean is one.
    codes = np.array([[0b10100000]] * 6 + [[0b00000000]] * 2, dtype=np.uint8)
    assert bucket_load(codes, [0, 1, 2]) == (6.0, 0.75)
    assert bucket_load(codes, [3]) == (2.0, 1.0)


def test_running_confidence_forgets() -> None:
    logits = np.concatenate([np.full((2000, 64), 9.0), np.full((500, 64), 0.1)])
    found = running_confidence(logits.astype(np.float32), BLOCKS)
    assert found["image"] == pytest.approx(np.tanh(0.1), abs=0.02)


def test_weightings() -> None:
    logits = np.concatenate([np.full((2, 32), 2.0), np.full((2, 32), -0.5)], axis=1)
    found = weights_of(logits, BLOCKS, "weighted", None)
    np.testing.assert_allclose(found["image"], np.tanh(2.0))
    np.testing.assert_allclose(found["text"], np.tanh(0.5))
    assert weights_of(logits, BLOCKS, "masked", "image")["image"].tolist() == [0, 0]
    with pytest.raises(ValueError, match="weighting='even'"):
        weights_of(logits, BLOCKS, "even", None)


def test_a_degraded_picture_is_small_and_its_request_the_same_otherwise() -> None:
    big = io.BytesIO()
    Image.new("RGBA", (200, 100), "red").save(big, "PNG")
    request = Request(image=big.getvalue(), text="what colour is it", group="a")
    changed = degraded(request, "image", 0)
    assert Image.open(io.BytesIO(changed.image)).size == (24, 12)  # type: ignore[arg-type]
    assert (changed.text, changed.group) == (request.text, request.group)
    assert degraded(request, "text", 0).image is request.image


def test_misspelling_keeps_most_letters_and_the_script() -> None:
    text = "Was für ein Bild ist das, und was zeigt es? " * 20
    found = misspelt(text, np.random.default_rng(0))
    assert found == misspelt(text, np.random.default_rng(0))
    assert found != text
    assert set(found) <= set(text)
    assert 0.9 < len(found) / len(text) < 1.1
    assert misspelt("x", np.random.default_rng(1), share=1.0)
    assert misspelt("?! 1", np.random.default_rng(1), share=1.0) == "?! 1"


def made(seed: int) -> tuple[np.ndarray, Labels, Cut]:
    """A store with one request of each group, and one query of each and of as many others."""
    rng = np.random.default_rng(seed)
    centre = rng.standard_normal((2 * GROUPS, 64)).astype(np.float32)
    group = np.concatenate([np.arange(GROUPS), np.arange(2 * GROUPS)])
    logits = 2 * np.sign(centre[group]) + 0.5 * rng.standard_normal((len(group), 64))
    requests = [
        Request(image=b"%d" % n, text="?", group=str(g)) for n, g in enumerate(group.tolist())
    ]
    query = np.arange(GROUPS, 3 * GROUPS)
    cut = Cut("all", np.arange(GROUPS), query, query < 2 * GROUPS)
    return logits.astype(np.float32), Labels.of(requests), cut


def test_distrust_of_noise_serves_more() -> None:
    logits, labels, cut = made(0)
    before, after = logits[cut.query], logits[cut.query].copy()
    rng = np.random.default_rng(9)
    # Chance, with little confidence, in most of the image's bits.
    noise = (0.05 * rng.standard_normal(after[:, :32].shape)).astype(np.float32)
    after[:, :32] = np.where(rng.random(noise.shape) < 0.9, noise, after[:, :32])
    drift = Drift("image", BLOCKS, logits, {"before": before, "after": after}, labels, cut)
    calibration = made(1)
    records = drift_records(drift, *calibration, (0.05, 0.001), "toy")
    found = {(r.subset, r.method, r.metric): r for r in records}
    assert len(found) == len(records)

    def value(half: str, method: str, metric: str) -> float:
        figure = found[f"all:drift_image:{half}", method, metric].value
        assert figure is not None
        return figure

    hits = "hit_rate_at_0.05"
    assert value("before", "unweighted", hits) > 0.95
    assert value("after", "weighted", hits) > value("after", "unweighted", hits)
    assert value("after", "masked", hits) > 0.95
    assert value("after", "confidence", "confidence_image") < 0.7
    assert value("after", "confidence", "confidence_text") > 0.9
    assert found["all:drift_image:after", "weighted", "hit_rate_at_0.001"].value is None
    assert "served queries" in found["all:drift_image:after", "weighted", "hit_rate_at_0.001"].note
    point = found["all:drift_image:before", "unweighted", "point_hit_rate_at_0.001"].value
    assert point is not None and point > 0.9
    assert value("after", "weighted", "p_chr_auc") > value("after", "unweighted", "p_chr_auc")
    assert value("before", "weighted", "nearest_right_rate") > 0.95
    taken = found["all:drift_image:after", "weighted", "crowded_bucket_rate"].note
    image, text = (int(part.split()[0]) for part in taken.split(", "))
    assert image < text and image + text == 9  # 300 entries in 512 buckets


def test_a_point_threshold_is_the_loosest_that_keeps_the_budget() -> None:
    similarity = np.array([0.9, 0.8, 0.8, 0.7, 0.6])
    served = Served(
        np.arange(5), similarity, np.array([1, 1, 0, 1, 0], dtype=bool), np.ones(5, dtype=bool)
    )
    assert point_threshold(served, 0.3, "toy").value == 0.7  # 1 of 4; at 0.8, 1 of 3 is wrong
    assert point_threshold(served, 0.1, "toy").value == 0.9
    worst = replace(served, correct=np.zeros(5, dtype=bool))
    none = point_threshold(worst, 0.1, "toy")
    assert none.value is None and "already break 0.1" in none.reason


def test_a_modality_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="request has no image to degrade"):
        degraded(Request(text="what is it"), "image", 0)
