from __future__ import annotations

import numpy as np
import pytest

from keynet.replay.misaligned import WAYS, fused_keys

RNG = np.random.default_rng(0)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


IMAGE, TEXT = unit(RNG.standard_normal((40, 24))), unit(RNG.standard_normal((40, 24)))


@pytest.mark.parametrize("way", WAYS)
def test_keys_have_unit_norm_and_follow_the_seed(way: str) -> None:
    keys = fused_keys(IMAGE, TEXT, way)
    assert np.allclose(np.linalg.norm(keys, axis=1), 1, atol=1e-6)
    assert (keys == fused_keys(IMAGE, TEXT, way)).all()
    assert way == "aligned" or (keys != fused_keys(IMAGE, TEXT, way, 1)).any()


def test_a_rotation_keeps_the_pictures_distances_and_loses_the_alignment() -> None:
    none = np.zeros_like(TEXT)
    turned = fused_keys(IMAGE, none, "rotated")
    assert np.allclose(turned @ turned.T, IMAGE @ IMAGE.T, atol=1e-5)
    same = fused_keys(IMAGE, IMAGE, "aligned")  # picture and text at one place
    assert np.allclose(same, IMAGE, atol=1e-6)
    assert np.abs((turned * IMAGE).sum(1)).mean() < 0.4


def test_half_of_the_pictures_stay() -> None:
    keys = fused_keys(IMAGE, np.zeros_like(TEXT), "half_rotated")
    stayed = np.isclose(keys, IMAGE, atol=1e-6).all(axis=1)
    assert 10 < stayed.sum() < 30


def test_a_shuffle_keeps_the_numbers() -> None:
    keys = fused_keys(IMAGE, np.zeros_like(TEXT), "shuffled")
    assert np.allclose(np.sort(keys), np.sort(IMAGE), atol=1e-6) and (keys != IMAGE).any()


def test_faults() -> None:
    with pytest.raises(ValueError, match="no misalignment 'mirrored'; known are aligned"):
        fused_keys(IMAGE, TEXT, "mirrored")
    with pytest.raises(ValueError, match="request 0 has no picture and no text"):
        fused_keys(np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32))
