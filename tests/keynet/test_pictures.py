from __future__ import annotations

import io
import struct
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from keynet.pictures import decode_image, open_image
from keynet.types import RequestError

RED, WHITE = (255, 0, 0), (255, 255, 255)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixel(tensor: torch.Tensor, x: int, y: int) -> tuple[int, ...]:
    return tuple(tensor[:, y, x].tolist())


# Pictures that must work


def test_the_longer_side_fills_and_the_rest_is_background() -> None:
    wide = decode_image(encoded(Image.new("RGB", (40, 20), RED)), 8)
    assert wide.shape == (3, 8, 8)
    assert wide.dtype == torch.uint8
    assert pixel(wide, 0, 1) == WHITE
    assert pixel(wide, 0, 2) == pixel(wide, 7, 5) == RED
    assert pixel(wide, 0, 6) == WHITE
    black = decode_image(encoded(Image.new("RGB", (20, 40), RED)), 8, background=(0, 0, 0))
    assert pixel(black, 1, 0) == (0, 0, 0)
    assert pixel(black, 2, 0) == RED


def test_bytes_path_and_array_give_the_same_pixels(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(array))
    (tmp_path / "a.png").write_bytes(data)
    expected = decode_image(data, 8)
    assert torch.equal(decode_image(tmp_path / "a.png", 8), expected)
    assert torch.equal(decode_image(str(tmp_path / "a.png"), 8), expected)
    assert torch.equal(decode_image(array, 8), expected)
    assert torch.equal(decode_image(array[:, ::-1][:, ::-1], 8), expected)


def test_one_pixel_and_very_wide_pictures_work() -> None:
    assert (decode_image(encoded(Image.new("RGB", (1, 1), RED)), 8)[0] == 255).all()
    wide = decode_image(encoded(Image.new("RGB", (20_000, 100), RED)), 8)
    assert [pixel(wide, 3, y) for y in range(8)].count(RED) == 1


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises so many pixels and holds none: they must not be asked for."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + chunk
        + struct.pack(">I", crc32(chunk))
        + b"\0\0\0\0IDAT"
    )


@pytest.mark.parametrize("size", [(20_000, 20_000), (10_000, 10_000), (9_000, 8_000)])
def test_too_many_pixels_are_refused_before_decoding(size: tuple[int, int]) -> None:
    with pytest.raises(RequestError, match=r"pixels, more than 64,000,000; send a smaller one"):
        decode_image(png_header(*size), 8)
    with pytest.raises(RequestError, match=r"5 x 5 pixels, more than 24"):
        decode_image(encoded(Image.new("RGB", (5, 5))), 8, max_pixels=24)


def test_draft_decoding_of_large_jpegs_stays_close_to_the_exact_one() -> None:
    y, x = np.mgrid[0:1200, 0:1600]
    array = np.stack([x * 255 // 1599, y * 255 // 1199, (x + y) % 256], 2).astype(np.uint8)
    jpeg = encoded(Image.fromarray(array), "JPEG", quality=95)
    exact = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    gap = decode_image(jpeg, 32).int() - decode_image(exact, 32).int()
    assert gap.abs().max() <= 6


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_turns_the_picture_upright(orientation: int) -> None:
    upright = np.zeros((8, 8, 3), dtype=np.uint8)
    upright[:4, :4] = (255, 0, 0)
    upright[:4, 4:] = (0, 255, 0)
    undo = {2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}
    methods = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    stored = Image.fromarray(upright)
    if orientation in undo:
        stored = stored.transpose(methods[undo[orientation]])
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert torch.equal(decode_image(encoded(stored, exif=exif), 8), decode_image(upright, 8))


def test_a_broken_exif_block_leaves_the_picture_as_stored() -> None:
    image = Image.new("RGB", (8, 8), RED)
    assert pixel(decode_image(encoded(image, exif=b"Exif\0\0garbage"), 8), 4, 4) == RED


def test_a_picture_at_its_own_size_is_upright_and_opaque() -> None:
    clear = Image.new("RGBA", (300, 200), (0, 0, 0, 0))
    clear.putpixel((0, 0), (255, 0, 0, 255))
    exif = Image.Exif()
    exif[0x0112] = 6
    opened = open_image(encoded(clear, "PNG", exif=exif))
    assert (opened.mode, opened.size) == ("RGB", (200, 300))
    assert opened.getpixel((199, 0)) == RED
    assert opened.getpixel((0, 0)) == WHITE


def test_cmyk_becomes_rgb() -> None:
    cyan = encoded(Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "TIFF")
    assert pixel(decode_image(cyan, 8), 4, 4) == (0, 255, 255)
    red, green, blue = pixel(
        decode_image(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), 8), 4, 4
    )
    assert red > 250
    assert max(green, blue) < 5


@pytest.mark.parametrize(
    ("value", "grey"), [(0, 0), (255, 1), (256, 1), (32_768, 128), (40_000, 156), (65_535, 255)]
)
def test_sixteen_bits_are_scaled_not_clipped(value: int, grey: int) -> None:
    image = Image.fromarray(np.full((8, 8), value, dtype=np.uint16))
    for kind in ("PNG", "TIFF"):
        assert pixel(decode_image(encoded(image, kind), 8), 4, 4) == (grey, grey, grey)
    pgm = b"P5 2 2 65535\n" + value.to_bytes(2, "big") * 4
    assert pixel(decode_image(pgm, 8), 4, 4) == (grey, grey, grey)


def test_pixels_of_unknown_range_are_refused() -> None:
    floats = encoded(Image.new("F", (4, 4), 0.5), "TIFF")
    with pytest.raises(RequestError, match="floating point"):
        decode_image(floats, 8)
    wide = encoded(Image.new("I", (4, 4), 70_000), "TIFF")
    with pytest.raises(RequestError, match="32-bit"):
        decode_image(wide, 8)


def transparent_pictures() -> dict[str, bytes]:
    rgba = Image.new("RGBA", (8, 8), (*RED, 0))
    rgba.paste((*RED, 255), (0, 0, 4, 8))
    grey = Image.new("LA", (8, 8), (0, 0))
    grey.paste((0, 255), (0, 0, 4, 8))
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([255, 0, 0, 9, 9, 9])
    palette.paste(0, (0, 0, 4, 8))
    sixteen = np.full((8, 8), 7, dtype=np.uint16)
    sixteen[:, :4] = 0
    return {
        "RGBA": encoded(rgba),
        "RGBA WebP": encoded(rgba, "WEBP", lossless=True),
        "LA": encoded(grey),
        "P": encoded(palette, transparency=1),
        "P GIF": encoded(palette, "GIF", transparency=1),
        "RGB with a colour key": encoded(Image.new("RGB", (8, 8), RED), transparency=RED),
        "16 bits with a colour key": encoded(Image.fromarray(sixteen), transparency=7),
    }


@pytest.mark.parametrize("name", transparent_pictures())
def test_transparency_is_laid_on_the_background(name: str) -> None:
    data = transparent_pictures()[name]
    assert pixel(decode_image(data, 8), 6, 4) == WHITE
    assert pixel(decode_image(data, 8, background=(1, 2, 3)), 6, 4) == (1, 2, 3)
    if name != "RGB with a colour key":  # all of that one is transparent
        opaque = RED if name.startswith(("RGBA", "P")) else (0, 0, 0)
        assert pixel(decode_image(data, 8), 1, 4) == opaque


def test_half_transparent_pixels_are_mixed() -> None:
    half = encoded(Image.new("RGBA", (8, 8), (255, 0, 0, 128)))
    assert pixel(decode_image(half, 8), 4, 4) == (255, 127, 127)


# Pictures that must not


def test_truncated_files_are_refused_whatever_the_format() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"):
        data = encoded(image, kind)
        with pytest.raises(RequestError, match=r"damaged or cut short|not an image") as caught:
            decode_image(data[: len(data) // 2], 8)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", r"image is empty \(0 bytes\)"),
        (b"hello, I am a text", "not an image that can be read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (np.zeros((4, 4), dtype=np.uint8), r"uint8 \[4, 4\]; give uint8 \[height, width, 3\]"),
        (np.zeros((4, 4, 4), dtype=np.uint8), r"uint8 \[4, 4, 4\]"),
        (np.zeros((4, 4, 3), dtype=np.float32), r"float32 \[4, 4, 3\]"),
        (np.zeros((0, 4, 3), dtype=np.uint8), "4 x 0 pixels"),
        ("no/such/file.png", "'no/such/file.png' does not exist"),
        ("a\0b", "is no path"),
        ("x" * 5_000, r"… \(5000 characters\) cannot be read \(File name too long\)"),
        ("\ud800.png", "is no path|does not exist"),
        ("/", "is not a file"),
        (42, "image is int; give bytes, a path or a uint8 array"),
    ],
)
def test_sources_that_are_no_picture(source: object, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        decode_image(source, 8)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")  # chmod would not stop root

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(RequestError, match=r"a\.png' cannot be read \(Permission denied\)"):
        decode_image(tmp_path / "a.png", 8)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_an_image_or_a_request_error(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "AVIF", "BMP"]))
    content = bytearray(encoded(Image.new("RGB", (12, 9), RED), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert decode_image(bytes(content), 8).shape == (3, 8, 8)
    except RequestError as error:
        assert "\n" not in str(error)
    except UserWarning:
        pass  # Pillow's own, an error in this suite alone
