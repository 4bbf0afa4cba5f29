"""Pictures to pixels, in training and in serving: the only code that decodes.

A picture is turned upright by its EXIF orientation, the first frame of an animation stands for it,
transparency is laid on a background, the longer side becomes S and the rest is background, 16 bits
are scaled to 8, colour profiles are ignored.
"""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from keynet.types import RequestError

Colour = tuple[int, int, int]

MAX_PIXELS = 64_000_000  # 256 MB once decoded to RGBA
PILLOW_PIXELS = 89_478_485  # beyond, Image.open warns of a decompression bomb
# Pillow's others are rare, or hand the file to another program (EPS, WMF). JPEG includes MPO.
FORMATS = (
    "PNG", "JPEG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO",
)  # fmt: skip
# What Pillow raises on damaged files, by its own source: there is no common base class.
DECODE_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError, OverflowError,
    MemoryError, RuntimeError, struct.error, zlib.error,
)  # fmt: skip
# EXIF orientations 2 to 8; 1 is upright.
UPRIGHT = dict(enumerate((
    Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM,
    Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
), start=2))  # fmt: skip


def decode_image(
    source: bytes | str | Path | np.ndarray,
    image_size: int,
    *,
    background: Colour = (255, 255, 255),
    max_pixels: int = MAX_PIXELS,
) -> Tensor:
    """Return the picture as uint8 [3, S, S], upright, opaque, aspect kept, padded to a square.

    Args:
        source: Encoded bytes, a path, or a uint8 array [H, W, 3].
        image_size: S; the longer side becomes S, small pictures grow.
        background: Colour behind transparency and in the padding.
        max_pixels: Larger pictures are refused before they are decoded.

    Raises:
        RequestError: When the source is no picture that can be read.
    """
    return decode(source, image_size, background, max_pixels)[0]


def open_image(source: bytes | str | Path | np.ndarray) -> Image.Image:
    """Return the picture at its own size, upright, opaque, 8-bit RGB; raises as decode_image."""
    return _open(source, None, (255, 255, 255), MAX_PIXELS)[0]


def decode(
    source: bytes | str | Path | np.ndarray, image_size: int, background: Colour, max_pixels: int
) -> tuple[Tensor, bool]:
    """``decode_image``, and whether the picture is the first of several frames."""
    image, animated = _open(source, image_size, background, max_pixels)
    width, height = _fit(image.size, image_size)
    # Source of the gap: Pillow's manual, 3.0 "almost indistinguishable from fair resampling".
    image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)
    square = Image.new("RGB", (image_size, image_size), background)
    square.paste(image, ((image_size - width) // 2, (image_size - height) // 2))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous(), animated


def _open(
    source: bytes | str | Path | np.ndarray,
    image_size: int | None,
    background: Colour,
    max_pixels: int,
) -> tuple[Image.Image, bool]:
    if isinstance(source, np.ndarray):
        return _from_array(source, max_pixels), False
    data, name = (source, "image") if isinstance(source, bytes) else _read(source)
    return _from_bytes(data, name, image_size, background, max_pixels)


def _from_array(array: np.ndarray, max_pixels: int) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise RequestError(
            f"image array is {array.dtype} {list(array.shape)}; give uint8 [height, width, 3]"
        )
    height, width, _ = array.shape
    _check_size(width, height, "image array", max_pixels)
    return Image.fromarray(np.ascontiguousarray(array))


def _from_bytes(
    data: bytes, name: str, image_size: int | None, background: Colour, max_pixels: int
) -> tuple[Image.Image, bool]:
    if not data:
        raise RequestError(f"{name} is empty (0 bytes); send the whole file")
    Image.init()
    formats = [f for f in FORMATS if f in Image.OPEN]
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            _check_size(*image.size, name, max_pixels)
            animated = bool(getattr(image, "is_animated", False))
            if image_size is not None:
                width, height = _fit(image.size, image_size)
                image.draft(None, (3 * width, 3 * height))  # JPEG decodes smaller, at that gap
            image.load()
            return _opaque(_upright(image), name, background), animated
    except RequestError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        size = str(error).partition(")")[0].partition("(")[2]  # "Image size (N pixels) exceeds …"
        raise RequestError(
            f"{name} has {size}, more than {max_pixels:,}; send a smaller one"
        ) from error
    except UnidentifiedImageError as error:
        raise RequestError(
            f"{name} is not an image that can be read ({len(data):,} bytes); send one of "
            + ", ".join(formats)
        ) from error
    except DECODE_ERRORS as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RequestError(f"{name} is damaged or cut short ({reason}); send it again") from error


def _read(source: str | Path) -> tuple[bytes, str]:
    """Return the bytes of a file and what messages call it."""
    if not isinstance(source, (str, Path)):
        raise RequestError(
            f"image is {type(source).__name__}; give bytes, a path or a uint8 array [H, W, 3]"
        )
    shown, size = repr(str(source)), len(str(source))
    name = "image " + (shown if len(shown) <= 120 else f"{shown[:100]}… ({size} characters)")
    try:
        path = Path(source)
        # A pipe or a device would never end; a missing one is left to read_bytes to report.
        content = path.read_bytes() if path.is_file() or not path.exists() else None
    except FileNotFoundError as error:
        raise RequestError(f"{name} does not exist; check the path") from error
    except OSError as error:
        raise RequestError(f"{name} cannot be read ({error.strerror})") from error
    except ValueError as error:  # a NUL or a lone surrogate
        raise RequestError(f"{name} is no path ({error})") from error
    if content is None:
        raise RequestError(f"{name} is not a file; give the path of one")
    return content, name


def _check_size(width: int, height: int, name: str, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise RequestError(f"{name} is {width} x {height} pixels; it needs at least 1 x 1")
    if width * height > max_pixels:
        raise RequestError(
            f"{name} is {width:,} x {height:,} pixels, more than {max_pixels:,}; send a smaller one"
        )


def _fit(size: tuple[int, int], image_size: int) -> tuple[int, int]:
    """Width and height once the longer side is ``image_size``; at least one pixel each."""
    scale = image_size / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(0x0112, 1)
    except DECODE_ERRORS:
        return image  # as browsers do: a broken EXIF block is no reason to refuse sound pixels
    method = UPRIGHT.get(orientation)
    return image if method is None else image.transpose(method)


def _opaque(image: Image.Image, name: str, background: Colour) -> Image.Image:
    """Return the picture in 8-bit RGB, transparency laid on ``background``."""
    if image.mode == "F":
        raise RequestError(f"{name} has floating point pixels; send 8 or 16 bits a channel")
    if image.mode.startswith("I"):
        image = _eight_bits(image, name)
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    flat = Image.new("RGB", image.size, background)
    flat.paste(image, mask=image.getchannel("A"))
    return flat


def _eight_bits(image: Image.Image, name: str) -> Image.Image:
    """Scale 16-bit grey to 8 bits (Pillow would clip it at 255)."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65_535:
        raise RequestError(f"{name} has 32-bit pixels; send 8 or 16 bits a channel")
    grey = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    transparent = image.info.get("transparency")
    if transparent is not None:
        grey.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
    return grey
