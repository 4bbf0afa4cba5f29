from __future__ import annotations

import io
from collections import Counter

import numpy as np
import pytest
from PIL import Image, ImageDraw

from data.perturb import as_sent, encode, perturbations, photo_as_sent


def drawing(size: int = 160, colour: tuple[int, ...] = (200, 30, 40, 255)) -> Image.Image:
    image = Image.new("RGBA", (size, size), (0, 0, 0, 0))
    ImageDraw.Draw(image).ellipse((size // 5, size // 5, size * 4 // 5, size * 4 // 5), fill=colour)
    return image


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


SENT = [as_sent(drawing(), np.random.default_rng(seed)) for seed in range(200)]


def test_the_seed_alone_decides() -> None:
    assert as_sent(drawing(), np.random.default_rng(3)) == SENT[3]
    assert len(set(SENT)) == 200


def test_the_drawing_does_not_change_what_is_drawn_at_random() -> None:
    after = []
    for size, colour in ((160, (200, 30, 40, 255)), (40, (0, 0, 0, 0))):
        rng = np.random.default_rng(3)
        as_sent(drawing(size, colour), rng)
        after.append(rng.random())
    assert after[0] == after[1]


def test_sizes_formats_and_modes() -> None:
    pictures = [opened(data) for data in SENT]
    assert all(64 <= max(p.size) <= 192 for p in pictures)
    assert max(max(p.size) for p in pictures) > 180
    assert min(max(p.size) for p in pictures) < 75
    assert all(p.mode == "RGB" for p in pictures)
    share = {f: sum(p.format == f for p in pictures) / 200 for f in ("JPEG", "WEBP", "PNG")}
    assert share["JPEG"] == pytest.approx(0.5, abs=0.12)
    assert share["WEBP"] == pytest.approx(0.25, abs=0.1)
    assert share["PNG"] == pytest.approx(0.25, abs=0.1)


def test_backgrounds_differ_and_the_drawing_stays_visible() -> None:
    corners, inside = set(), 0
    for data in SENT:
        picture = np.asarray(opened(data)).astype(int)
        corners.add(tuple(picture[0, 0] // 16))
        inside += bool((np.abs(picture - (200, 30, 40)).max(2) < 40).mean() > 0.1)
    assert len(corners) > 20
    assert inside == 200


@pytest.mark.parametrize("encoding", ["JPEG", "WEBP"])
def test_quality_costs_bytes_and_keeps_pixels(encoding: str) -> None:
    picture = Image.effect_noise((64, 64), 40).convert("RGB")
    low, high = (encode(picture, encoding, quality) for quality in (20, 95))
    assert len(low) < len(high)
    error = [
        np.abs(np.asarray(opened(d)).astype(int) - np.asarray(picture)).mean() for d in (low, high)
    ]
    assert error[1] < error[0]
    assert opened(high).format == encoding


def test_png_keeps_every_pixel() -> None:
    picture = Image.effect_noise((33, 20), 90).convert("RGB")
    assert np.array_equal(np.asarray(opened(encode(picture, "PNG", 1))), np.asarray(picture))


def test_perturbations_are_what_their_names_say() -> None:
    picture = drawing(100).convert("RGB")
    found = {name: opened(data) for name, data in perturbations(picture).items()}
    assert {name: p.size for name, p in found.items()} == {
        "jpeg_q10": (100, 100), "jpeg_q50": (100, 100), "jpeg_q90": (100, 100),
        "webp_q50": (100, 100), "resize_half": (50, 50), "resize_quarter": (25, 25),
        "crop_4_percent": (92, 92), "crop_8_percent": (84, 84),
    }  # fmt: skip
    assert (found["jpeg_q50"].format, found["webp_q50"].format) == ("JPEG", "WEBP")
    assert np.array_equal(np.asarray(found["crop_4_percent"]), np.asarray(picture)[4:96, 4:96])
    assert perturbations(picture) == perturbations(picture)


def test_the_smallest_picture_can_be_perturbed() -> None:
    sizes = [opened(d).size for d in perturbations(Image.new("RGB", (1, 1))).values()]
    assert sizes == [(1, 1)] * 8


def test_how_a_photograph_is_sent() -> None:
    """Of a picture whose left half is red and whose right half is blue."""
    pixels = np.zeros((100, 200, 3), np.uint8)
    pixels[:, :100, 0], pixels[:, 100:, 2] = 255, 255
    picture = Image.fromarray(pixels)
    sent = [photo_as_sent(picture, np.random.default_rng(seed)) for seed in range(200)]
    assert len(set(sent)) == 200
    assert photo_as_sent(picture, np.random.default_rng(7)) == sent[7]
    images = [Image.open(io.BytesIO(data)) for data in sent]
    longer = [max(image.size) for image in images]
    assert 96 <= min(longer) < 102 and 186 < max(longer) <= 192
    assert Counter(i.format for i in images)["JPEG"] == pytest.approx(100, abs=25)
    assert {i.format for i in images} == {"JPEG", "WEBP"}
    mirrored = 0
    for image in images:
        # At least 70 % of each side are left, and at most all.
        assert 2 * 0.69 < image.width / image.height < 2 / 0.69
        row = np.asarray(image.convert("RGB"))[image.height // 2].astype(int)
        mirrored += bool(row[3, 2] > row[3, 0])
        share = (row[:, 0] > row[:, 2]).mean()
        assert 0.35 / 0.85 - 0.02 < share < 0.5 / 0.85 + 0.02
    assert mirrored == pytest.approx(100, abs=25)


def test_the_photograph_does_not_change_what_is_drawn_at_random() -> None:
    after = []
    for size in ((160, 160), (31, 17)):
        rng = np.random.default_rng(3)
        photo_as_sent(Image.new("RGB", size), rng)
        after.append(rng.random())
    assert after[0] == after[1]
    assert photo_as_sent(Image.new("RGB", (1, 1)), np.random.default_rng(0))
