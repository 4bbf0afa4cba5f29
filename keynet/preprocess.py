"""From bytes and text to tensors: the only code that decodes, flattens, resizes and tokenises.

Choices, each written into the manifest: the picture is turned upright by its EXIF orientation, the
first frame of an animation stands for it, transparency is laid on ``background``, the longer side
becomes S and the rest is ``background``, 16 bits are scaled to 8, colour profiles are ignored; text
is NFC and never cut silently.
"""

from __future__ import annotations

import hashlib
import io
import struct
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from tokenizers import Tokenizer
from torch import Tensor

from keynet.types import Request, RequestBatch, RequestError

LongText = Literal["error", "fold"]
Colour = tuple[int, int, int]

MAX_PIXELS = 64_000_000  # 256 MB once decoded to RGBA
PILLOW_PIXELS = 89_478_485  # beyond, Image.open warns of a decompression bomb
MAX_TEXT_BYTES = 1_000_000  # about half a second to tokenise
TOKEN_MULTIPLE = 8  # few distinct lengths, so few shapes for kernels
FOLD_TOKENS = 8  # 8 tokens of a vocabulary of 4,096 carry 96 bits of the digest
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
    return _decode(source, image_size, background, max_pixels)[0]


class Preprocessor:
    """Turns requests into a ``RequestBatch``.

    ``folded`` and ``animated`` count, in this process, the texts that were folded and the
    animations of which the first frame was taken.

    Args:
        image_size: S.
        tokenizer: Copied; its truncation and padding are switched off, and its special tokens
            cannot be written in a text.
        max_tokens: Longest text, a multiple of 8.
        background: Colour behind transparency and in the padding.
        long_text: ``error`` refuses a text of more tokens; ``fold`` keeps its head and tail and
            puts 8 tokens in between that are drawn from the SHA-256 of the whole text.
        max_pixels, max_text_bytes: Larger is refused before it is decoded or tokenised.

    Raises:
        ValueError: When a setting is out of range.
    """

    def __init__(
        self,
        image_size: int,
        tokenizer: Tokenizer,
        max_tokens: int,
        background: Colour = (255, 255, 255),
        long_text: LongText = "error",
        *,
        max_pixels: int = MAX_PIXELS,
        max_text_bytes: int = MAX_TEXT_BYTES,
    ) -> None:
        limits = {"image_size": image_size, "max_tokens": max_tokens}
        limits |= {"max_pixels": max_pixels, "max_text_bytes": max_text_bytes}
        for name, value in limits.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; give a positive number")
        if max_pixels > PILLOW_PIXELS:
            raise ValueError(f"max_pixels is {max_pixels}; Pillow takes {PILLOW_PIXELS} at most")
        if max_tokens % TOKEN_MULTIPLE:
            raise ValueError(f"max_tokens is {max_tokens}; give a multiple of {TOKEN_MULTIPLE}")
        if len(background) != 3 or not all(0 <= c <= 255 for c in background):
            raise ValueError(f"background is {background}; give three numbers from 0 to 255")
        if long_text not in ("error", "fold"):
            raise ValueError(f"long_text is {long_text!r}; give 'error' or 'fold'")
        if long_text == "fold" and max_tokens < 2 * FOLD_TOKENS:
            raise ValueError(f"max_tokens is {max_tokens}; folding needs {2 * FOLD_TOKENS}")
        self.image_size = image_size
        self.max_tokens = max_tokens
        self.background: Colour = (background[0], background[1], background[2])
        self.long_text: LongText = long_text
        self.max_pixels = max_pixels
        self.max_text_bytes = max_text_bytes
        self.folded = 0
        self.animated = 0
        self._set_tokenizer(tokenizer.to_str())

    def __call__(
        self,
        requests: Sequence[Request],
        group: Sequence[int] | None = None,
        sample_id: Sequence[int] | None = None,
        *,
        first: int = 0,
    ) -> RequestBatch:
        """Return the requests as one batch, L the longest text rounded up to a multiple of 8.

        Args:
            requests: At least one.
            group, sample_id: Of each; -1 where not given.
            first: Position of the first request in the caller's list, for messages.

        Raises:
            RequestError: When a request cannot become tensors; the message names its position.
        """
        count = len(requests)
        if count == 0:
            raise RequestError("no requests; give at least one")
        images = torch.zeros(count, 3, self.image_size, self.image_size, dtype=torch.uint8)
        image_mask = torch.zeros(count, dtype=torch.bool)
        texts: list[list[int]] = []
        for i, request in enumerate(requests):
            try:
                if request.image is not None:
                    images[i] = self.image(request.image)
                    image_mask[i] = True
                texts.append([] if request.text is None else self.tokenise(request.text))
            except RequestError as error:
                raise RequestError(f"request {first + i}: {error}") from error
        length = -(-max(1, *map(len, texts)) // TOKEN_MULTIPLE) * TOKEN_MULTIPLE
        tokens = torch.zeros(count, length, dtype=torch.int64)
        token_mask = torch.zeros(count, length, dtype=torch.bool)
        for i, ids in enumerate(texts):
            tokens[i, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
            token_mask[i, : len(ids)] = True
        labels = _labels("group", group, count), _labels("sample_id", sample_id, count)
        return RequestBatch(images, image_mask, tokens, token_mask, *labels)

    def image(self, source: bytes | str | Path | np.ndarray) -> Tensor:
        """Return the picture as uint8 [3, S, S]; see ``decode_image``."""
        pixels, animated = _decode(source, self.image_size, self.background, self.max_pixels)
        self.animated += animated
        return pixels

    def tokenise(self, text: str) -> list[int]:
        """Return the token ids of a text, at most ``max_tokens``.

        Raises:
            RequestError: When the text is empty, not Unicode, too large or too long.
        """
        text = self._normalise(text)
        ids = list(self._tokenizer.encode(text).ids)
        if not ids:
            raise RequestError("text has no tokens in this vocabulary; write it differently")
        if len(ids) <= self.max_tokens:
            return ids
        if self.long_text == "error":
            raise RequestError(
                f"text has {len(ids)} tokens and the model takes {self.max_tokens}; shorten it, "
                "or choose long_text='fold' (head and tail stay, a digest marks the middle)"
            )
        self.folded += 1
        return self._fold(ids, text)

    def long_text_digest(self, text: str | None) -> str | None:
        """Return the SHA-256 in hex of a text that is folded, and None for any other.

        It belongs into the scope: the model has not seen the middle, so only that text matches.
        """
        if text is None or self.long_text == "error":
            return None
        text = self._normalise(text)
        if len(self._tokenizer.encode(text).ids) <= self.max_tokens:
            return None
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def tokenizer_json(self) -> str:
        """The tokenizer as JSON text, as exports carry it."""
        return str(self._tokenizer.to_str())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tokenizer": self.tokenizer_json}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_tokenizer(state["_tokenizer"])

    def _set_tokenizer(self, json_text: str) -> None:
        tokenizer = Tokenizer.from_str(json_text)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Else a text "<pad>" would be the token of that name. Neither JSON nor pickles keep it.
        tokenizer.encode_special_tokens = True
        special = {i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}
        self._tokenizer = tokenizer
        self._plain_ids = sorted(set(tokenizer.get_vocab().values()) - special)

    def _normalise(self, text: str) -> str:
        if not isinstance(text, str):
            raise RequestError(f"text is {type(text).__name__}; give a str")
        # A character is at least one byte: refuses without encoding what is far too large.
        size = len(text)
        if size <= self.max_text_bytes:
            try:
                size = len(text.encode())
            except UnicodeEncodeError as error:
                raise RequestError(
                    f"text is not Unicode: lone surrogate U+{ord(text[error.start]):04X} at "
                    f"character {error.start}; decode it before sending"
                ) from error
        if size > self.max_text_bytes:
            raise RequestError(
                f"text has over {self.max_text_bytes:,} bytes ({size:,}); shorten it"
            )
        if not text.strip():
            raise RequestError("text is empty; leave text out (None) to send the image alone")
        return unicodedata.normalize("NFC", text)

    def _fold(self, ids: list[int], text: str) -> list[int]:
        kept = self.max_tokens - FOLD_TOKENS
        head, tail = kept - kept // 2, kept // 2
        number = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")
        middle = []
        for _ in range(FOLD_TOKENS):
            number, place = divmod(number, len(self._plain_ids))
            middle.append(self._plain_ids[place])
        return ids[:head] + middle + ids[len(ids) - tail :]


def _labels(name: str, values: Sequence[int] | None, count: int) -> Tensor:
    if values is None:
        return torch.full((count,), -1, dtype=torch.int64)
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} values for {count} requests; give one each")
    return torch.as_tensor(values, dtype=torch.int64)


def _decode(
    source: bytes | str | Path | np.ndarray, image_size: int, background: Colour, max_pixels: int
) -> tuple[Tensor, bool]:
    """Return the picture as uint8 [3, S, S], and whether it is the first of several frames."""
    if isinstance(source, np.ndarray):
        image, animated = _from_array(source, max_pixels), False
    else:
        data, name = (source, "image") if isinstance(source, bytes) else _read(source)
        image, animated = _from_bytes(data, name, image_size, background, max_pixels)
    width, height = _fit(image.size, image_size)
    # Source of the gap: Pillow's manual, 3.0 "almost indistinguishable from fair resampling".
    image = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)
    square = Image.new("RGB", (image_size, image_size), background)
    square.paste(image, ((image_size - width) // 2, (image_size - height) // 2))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous(), animated


def _from_array(array: np.ndarray, max_pixels: int) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise RequestError(
            f"image array is {array.dtype} {list(array.shape)}; give uint8 [height, width, 3]"
        )
    height, width, _ = array.shape
    _check_size(width, height, "image array", max_pixels)
    return Image.fromarray(np.ascontiguousarray(array))


def _from_bytes(
    data: bytes, name: str, image_size: int, background: Colour, max_pixels: int
) -> tuple[Image.Image, bool]:
    if not data:
        raise RequestError(f"{name} is empty (0 bytes); send the whole file")
    Image.init()
    formats = [f for f in FORMATS if f in Image.OPEN]
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            _check_size(*image.size, name, max_pixels)
            animated = bool(getattr(image, "is_animated", False))
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
