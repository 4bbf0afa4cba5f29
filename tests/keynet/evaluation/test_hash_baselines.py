from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from keynet.evaluation.average_precision import mean_average_precision
from keynet.evaluation.hash_baselines import (
    LinearHash,
    itq,
    orthohash,
    pca_sign,
    shuffled_batches,
    signs,
)

CLASSES, D = 10, 40


def clusters(count: int, seed: int, noise: float = 0.6) -> tuple[NDArray, NDArray]:
    centre = np.random.default_rng(0).standard_normal((CLASSES, D))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    rows = centre[labels] + noise * rng.standard_normal((count, D)) + 3.0
    return rows.astype(np.float32), labels


def quantisation_error(rows: NDArray, projected: NDArray) -> float:
    unit = projected / np.linalg.norm(projected, axis=1, keepdims=True)
    return float(1 - np.abs(unit).sum(1).mean() / projected.shape[1] ** 0.5)


def test_signs_are_packed_with_the_first_bit_highest() -> None:
    assert signs(np.array([[0.0, -1, -1, -1, -1, -1, -1, 2]])).tolist() == [[0b10000001]]


def test_pca_sign_takes_the_axes_of_most_variance() -> None:
    rng = np.random.default_rng(1)
    scale = np.geomspace(30, 0.1, D)
    turn = np.linalg.qr(rng.standard_normal((D, D)))[0]
    rows = (rng.standard_normal((2000, D)) * scale @ turn + 5).astype(np.float32)
    code = np.unpackbits(pca_sign(rows, 16)(rows), axis=1)
    expected = ((rows - rows.mean(0)) @ turn.T)[:, :16] >= 0
    agreement = (code == expected).mean(0)
    assert np.maximum(agreement, 1 - agreement)[:8].min() > 0.9  # up to the sign of an axis


def test_bits_are_balanced() -> None:
    rows, labels = clusters(2000, 1)
    for code in (pca_sign(rows, 32), itq(rows, 32, seed=0), orthohash(rows, labels, 32, seed=0)):
        ones = np.unpackbits(code(rows), axis=1).mean(0)
        assert ones.min() > 0.2 and ones.max() < 0.8


def test_itq_keeps_distances_better_than_the_axes_themselves() -> None:
    rows, labels = clusters(1500, 1)
    test, groups = clusters(300, 2)

    def judged(code) -> float:
        return mean_average_precision(code(test), code(rows), groups, labels)[0]

    assert judged(itq(rows, 32, seed=0)) > judged(pca_sign(rows, 32))


def test_itq_is_equal_for_equal_seeds() -> None:
    rows, _ = clusters(400, 1)
    first, again, other = (itq(rows, 16, 10, seed=seed)(rows) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_orthohash_finds_the_classes_that_it_was_told() -> None:
    """They lie in axes of little variance, which hashes that are told nothing leave out."""

    def beside(seed: int) -> tuple[NDArray, NDArray]:
        rows, labels = clusters(600, seed, noise=0.5)
        other = 6 * np.random.default_rng(seed + 50).standard_normal((600, D))
        return np.concatenate([rows, other.astype(np.float32)], axis=1), labels

    rows, labels = beside(1)
    test, groups = beside(2)
    told, again = (
        orthohash(rows, labels, 16, seed=0, epochs=60, learning_rate=1e-2) for _ in range(2)
    )
    found = mean_average_precision(told(test), told(rows), groups, labels)[0]
    blind = itq(rows, 16, seed=0)
    assert found > 0.7
    assert mean_average_precision(blind(test), blind(rows), groups, labels)[0] < 0.3
    assert np.array_equal(told(test), again(test))


@pytest.mark.parametrize("bits", [16, 32])
def test_each_gives_packed_codes_one_row_at_a_time_alike(bits: int) -> None:
    rows, labels = clusters(300, 1)
    for code in (
        pca_sign(rows, bits), itq(rows, bits, 5, seed=0),
        orthohash(rows, labels, bits, seed=0, epochs=1),
    ):  # fmt: skip
        found = code(rows[:20])
        assert found.shape == (20, bits // 8) and found.dtype == np.uint8
        assert np.array_equal(code(rows[3:4]), found[3:4])


def test_what_cannot_be_fitted() -> None:
    rows, labels = clusters(100, 1)
    for fit in (pca_sign, lambda *a: itq(*a, seed=0)):
        with pytest.raises(ValueError, match="bits=64, but the 100 embeddings of 40 numbers vary"):
            fit(rows, 64)
        with pytest.raises(ValueError, match="vary along 9 axes"):
            fit(rows[:10], 16)
    with pytest.raises(ValueError, match="bits=24: expected one of"):
        pca_sign(rows, 24)
    with pytest.raises(ValueError, match="iterations=0"):
        itq(rows, 16, 0, seed=0)
    with pytest.raises(ValueError, match="99 labels for 100 embeddings"):
        orthohash(rows, labels[1:], 16, seed=0)
    with pytest.raises(ValueError, match="1 class among the labels"):
        orthohash(rows, labels * 0, 16, seed=0)
    with pytest.raises(ValueError, match="1 rows, 20 epochs"):
        shuffled_batches(1, 20, torch.Generator())
    rows[3, 3] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity"):
        pca_sign(rows, 16)


def test_embeddings_of_another_width() -> None:
    rows, _ = clusters(100, 1)
    with pytest.raises(ValueError, match=r"expected \[N, 40\]"):
        pca_sign(rows, 16)(rows[:, :-1])


def test_a_linear_hash_is_drawn_by_its_generator() -> None:
    one, two = (LinearHash(8, 16, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one.linear.weight, two.linear.weight)
