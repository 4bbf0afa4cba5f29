from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache.modality_distance import (
    confidence,
    hamming,
    weighted_distance,
)

BLOCKS = {"image": (0, 64), "text": (64, 128)}


def codes(count: int, seed: int, width: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, width), dtype=np.uint8)


def differing(query: np.ndarray, stored: np.ndarray) -> np.ndarray:
    return np.unpackbits(query, axis=-1)[..., None, :] != np.unpackbits(stored, axis=-1)


@pytest.mark.parametrize("width", [1, 2, 4, 6, 7, 8, 12, 16, 64])
def test_hamming_counts_bits_at_every_width(width: int) -> None:
    query, stored = codes(5, 0, width), codes(9, 1, width)
    expected = differing(query, stored).sum(-1)
    assert np.array_equal(hamming(query, stored), expected)
    assert np.array_equal(hamming(query[2], stored), expected[2])


def share(query: np.ndarray, stored: np.ndarray, name: str) -> np.ndarray:
    """Of one modality's bits, those that differ."""
    first, end = BLOCKS[name]
    return differing(query, stored)[..., first:end].mean(-1)


@pytest.mark.parametrize("name", BLOCKS)
def test_one_modality_alone_is_the_share_of_its_bits(name: str) -> None:
    query, stored = codes(4, 0), codes(7, 1)
    weights = {"image": 0.0, "text": 0.0, name: 3.0}
    found = weighted_distance(query, stored, BLOCKS, weights)
    np.testing.assert_allclose(found, share(query, stored, name))
    np.testing.assert_allclose(weighted_distance(query[1], stored, BLOCKS, weights), found[1])


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 9), st.floats(0.01, 9), st.floats(0.01, 100), st.integers(0, 2**32 - 1))
def test_a_weighted_distance_is_a_mean(image: float, text: float, scale: float, seed: int) -> None:
    query, stored = codes(3, seed), codes(5, seed + 1)
    weights = {"image": image, "text": text}
    found = weighted_distance(query, stored, BLOCKS, weights)
    parts = [share(query, stored, name) for name in BLOCKS]
    low, high = (f(*parts) for f in (np.minimum, np.maximum))
    assert (found >= low - 1e-12).all() and (found <= high + 1e-12).all()
    scaled = {name: scale * weight for name, weight in weights.items()}
    np.testing.assert_allclose(weighted_distance(query, stored, BLOCKS, scaled), found)


def test_even_weights_are_the_hamming_distance() -> None:
    query, stored = codes(3, 0), codes(5, 1)
    found = weighted_distance(query, stored, BLOCKS, {"image": 2.0, "text": 2.0})
    np.testing.assert_allclose(found, hamming(query, stored) / 128)


def test_a_masked_modality_is_not_looked_at_and_what_is_stored_stays() -> None:
    query, stored = codes(1, 0)[0], codes(5, 1)
    kept = stored.copy()
    weights = {"image": 0.0, "text": 0.3}
    found = weighted_distance(query, stored, BLOCKS, weights)
    query[:8] = 255 - query[:8]
    assert np.array_equal(weighted_distance(query, stored, BLOCKS, weights), found)
    assert np.array_equal(stored, kept)


def test_each_query_has_its_own_weights() -> None:
    query, stored = codes(2, 0), codes(5, 1)
    weights = {"image": np.array([1.0, 0.0]), "text": np.array([1.0, 2.0])}
    found = weighted_distance(query, stored, BLOCKS, weights)
    for row in range(2):
        own = {name: float(weight[row]) for name, weight in weights.items()}
        np.testing.assert_allclose(found[row], weighted_distance(query[row], stored, BLOCKS, own))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"image": 1.0}, "weights of image, codes of image, text"),
        ({"image": 1.0, "text": 1.0, "sound": 1.0}, "weights of image, sound, text"),
        ({"image": -1.0, "text": 1.0}, "weight of image is -1.0"),
        ({"image": 1.0, "text": float("nan")}, "weight of text is nan"),
        ({"image": 0.0, "text": 0.0}, "all weights are 0"),
        ({"image": np.ones(3), "text": np.ones(3)}, "expected one weight or"),
        ({"image": np.array([1.0, 0.0]), "text": np.zeros(2)}, "all weights are 0"),
    ],
)
def test_weights_that_are_none(weights: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weighted_distance(codes(2, 0), codes(5, 1), BLOCKS, weights)


@pytest.mark.parametrize("block", [(0, 4), (-8, 64), (64, 64), (0, 136), (3, 11)])
def test_blocks_that_are_no_part_of_a_code(block: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="block of image is"):
        weighted_distance(codes(1, 0)[0], codes(2, 1), {"image": block}, {"image": 1.0})


def test_codes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        hamming(codes(1, 0)[0], codes(2, 1, width=8))
    with pytest.raises(ValueError, match="expected uint8"):
        hamming(codes(1, 0)[0].astype(np.int64), codes(2, 1))
    with pytest.raises(ValueError, match="no bytes"):
        hamming(np.zeros(0, np.uint8), np.zeros((3, 0), np.uint8))


def test_nothing_stored_is_nothing_found() -> None:
    assert hamming(codes(2, 0), codes(0, 1)).shape == (2, 0)


def test_confidence_is_the_mean_size_of_the_soft_bits() -> None:
    logits = np.array([[0.0, 0.0], [100.0, -100.0], [0.5, -0.5]], dtype=np.float32)
    np.testing.assert_allclose(confidence(logits), [0, 1, np.tanh(0.5)], rtol=1e-6)
    assert confidence(logits[2]) == pytest.approx(np.tanh(0.5))


@pytest.mark.parametrize("logits", [np.zeros((2, 0)), np.array(1.0), np.array([np.nan, 1.0])])
def test_logits_that_say_nothing(logits: np.ndarray) -> None:
    with pytest.raises(ValueError, match="logits"):
        confidence(logits)
