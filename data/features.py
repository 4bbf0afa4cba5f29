"""What frozen encoders make of pictures and texts: made once, and kept on disk if wanted."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from keynet.preprocess import Preprocessor
from keynet.types import RequestError

ROWS = "rows"


class FeatureError(ValueError):
    """Stored features that must not be used; the message says why and what to do."""


class Stem(Protocol):
    """The frozen part of an encoder.

    ``fingerprint`` is equal for equal weights; the call takes what the encoder takes, in batches.
    """

    @property
    def fingerprint(self) -> str: ...

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return features [B, ...]."""
        ...


def content_digest(content: bytes | str | Path | np.ndarray) -> bytes:
    """Return the SHA-256 of a picture's file or pixels.

    Raises:
        RequestError: When its file cannot be read.
    """
    if isinstance(content, np.ndarray):
        header = f"{content.dtype} {content.shape}".encode()
        return hashlib.sha256(header + np.ascontiguousarray(content).tobytes()).digest()
    if not isinstance(content, bytes):
        try:
            content = Path(content).read_bytes()
        except OSError as error:
            raise RequestError(f"image {content} cannot be read ({error.strerror})") from error
    return hashlib.sha256(content).digest()


def features_digest(
    modality: str, stem: Stem, preprocessor: Preprocessor, contents: Iterable[bytes]
) -> str:
    """Return 16 hex digits of all that decides the features of ``contents``, in their order."""
    p = preprocessor
    settings: tuple[object, ...] = (p.image_size, p.background)
    if modality == "text":
        settings = (p.tokenizer_json, p.max_tokens, p.long_text)
    digest = hashlib.sha256(f"{modality} {stem.fingerprint} {settings}".encode())
    for content in contents:
        digest.update(content)
    return digest.hexdigest()[:16]


def kept(folder: str | Path | None, name: str, count: int, make: Callable[[], Tensor]) -> Tensor:
    """Return the rows kept as ``folder/name.safetensors``, made and written where missing.

    Args:
        folder: None keeps nothing.
        name: Of the file; it tells all that decides the rows.
        count: Rows that are expected.
        make: Makes them.

    Raises:
        FeatureError: When the file is damaged or cannot be written, or what is made is not finite.
    """
    if folder is None:
        return _made(name, count, make)
    path = Path(folder) / f"{name}.safetensors"
    if path.exists():
        try:
            rows = load_file(path)[ROWS]
        except (OSError, SafetensorError, KeyError) as error:
            raise FeatureError(f"{path} is damaged ({error}); remove it") from error
        if fault := _fault(rows, count):
            raise FeatureError(f"{path} is damaged ({fault}); remove it")
        return rows
    try:  # before the rows are made, which may take hours
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{name}.")
        os.close(handle)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        rows = _made(name, count, make)
        try:
            save_file({ROWS: rows}, temporary)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except (OSError, SafetensorError) as error:  # a full disk is either, by who writes
            raise _unwritable(path, error) from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    return rows


def _made(name: str, count: int, make: Callable[[], Tensor]) -> Tensor:
    rows = make().contiguous()
    if fault := _fault(rows, count):
        raise FeatureError(f"the encoder's features {name} are unusable ({fault}); see its weights")
    return rows


def _fault(rows: Tensor, count: int) -> str | None:
    if rows.shape[:1] != (count,):
        return f"shape {list(rows.shape)}, expected {count} rows"
    if not rows.is_floating_point():
        return f"{rows.dtype}, expected floating point"
    return None if torch.isfinite(rows).all() else "it has values that are not finite"


def _unwritable(path: Path, error: Exception) -> FeatureError:
    return FeatureError(
        f"{path} cannot be written ({error}); make room, or give another place or null: "
        "data.features"
    )


def in_chunks(count: int, size: int, make: Callable[[range], Tensor]) -> Tensor:
    """Return ``make`` of ranges of up to ``size`` numbers below ``count``, one after the other."""
    return torch.cat([make(range(n, min(n + size, count))) for n in range(0, count, size)])
