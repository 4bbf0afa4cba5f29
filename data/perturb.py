"""Pictures as clients really send them: cropped, padded, resized, on a background, re-encoded."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np
from PIL import Image

Encoding = Literal["JPEG", "WEBP", "PNG"]
SENT_AS: tuple[Encoding, ...] = ("JPEG", "JPEG", "WEBP", "PNG")  # every second picture is JPEG

BACKGROUNDS = ((255, 255, 255), (246, 247, 249), (229, 221, 213), (32, 33, 36), (0, 0, 0))


def encode(picture: Image.Image, encoding: Encoding, quality: int = 90) -> bytes:
    """Return ``picture`` as encoded bytes; ``quality`` is ignored by PNG."""
    buffer = io.BytesIO()
    if encoding == "PNG":
        picture.save(buffer, "PNG", compress_level=1)
    elif encoding == "WEBP":
        picture.save(buffer, "WEBP", quality=quality, method=0)
    else:
        picture.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def as_sent(drawing: Image.Image, rng: np.random.Generator) -> bytes:
    """Return a drawing as one client would send it.

    A background (chat themes, or any colour), a margin of up to 25 %, a crop of up to 6 % a side,
    64 to 192 px, JPEG or WebP at quality 40 to 95, or PNG.

    Args:
        drawing: RGBA, square.
        rng: All randomness; one call draws the same number of values whatever the outcome.
    """
    themed, theme = rng.random() < 0.7, int(rng.integers(len(BACKGROUNDS)))
    colour = tuple(int(c) for c in rng.integers(0, 256, 3))
    margin, shift = rng.uniform(0, 0.25), rng.uniform(0, 1, 2)
    crop = rng.uniform(0, 0.06, 4) * (rng.random() < 0.3)
    size = int(rng.integers(64, 193))
    encoding = SENT_AS[int(rng.integers(len(SENT_AS)))]
    quality = int(rng.integers(40, 96))

    side = drawing.width
    canvas_side = round(side * (1 + margin))
    canvas = Image.new("RGB", (canvas_side,) * 2, BACKGROUNDS[theme] if themed else colour)
    corner = tuple(int(s * (canvas_side - side)) for s in shift)
    canvas.paste(drawing, corner, drawing)
    box = (crop * canvas_side).astype(int)
    canvas = canvas.crop((box[0], box[1], canvas_side - box[2], canvas_side - box[3]))
    scale = size / max(canvas.size)
    canvas = canvas.resize(tuple(max(1, round(s * scale)) for s in canvas.size), Image.BILINEAR)
    return encode(canvas, encoding, quality)


def photo_as_sent(picture: Image.Image, rng: np.random.Generator) -> bytes:
    """Return a photograph as one client would send it.

    A crop of up to 15 % a side, mirrored half of the time, the longer side 96 to 192 px, JPEG or
    WebP at quality 50 to 95.

    Args:
        picture: RGB, of any shape.
        rng: All randomness; one call draws the same number of values whatever the outcome.
    """
    crop = rng.uniform(0, 0.15, 4)
    mirrored = rng.random() < 0.5
    size = int(rng.integers(96, 193))
    encoding: Encoding = "JPEG" if rng.random() < 0.5 else "WEBP"
    quality = int(rng.integers(50, 96))

    width, height = picture.size
    left, top, right, bottom = (crop * (width, height, width, height)).astype(int)
    picture = picture.crop((left, top, width - right, height - bottom))
    if mirrored:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    scale = size / max(picture.size)
    sides = tuple(max(1, round(s * scale)) for s in picture.size)
    # Resampled finely: photographs are often much larger than what is sent.
    return encode(picture.resize(sides, Image.Resampling.BICUBIC), encoding, quality)


def perturbations(picture: Image.Image) -> dict[str, bytes]:
    """Return the fixed perturbations under which keys should stay: name -> encoded bytes."""
    width, height = picture.size
    found = {f"jpeg_q{quality}": encode(picture, "JPEG", quality) for quality in (10, 50, 90)}
    found["webp_q50"] = encode(picture, "WEBP", 50)
    for name, part in (("half", 2), ("quarter", 4)):
        small = picture.resize(tuple(max(1, s // part) for s in picture.size), Image.BILINEAR)
        found[f"resize_{name}"] = encode(small, "PNG")
    for percent in (4, 8):
        x, y = width * percent // 100, height * percent // 100
        found[f"crop_{percent}_percent"] = encode(
            picture.crop((x, y, width - x, height - y)), "PNG"
        )
    return found
