"""What frozen encoders make of pictures and texts: made once, and kept on disk if wanted."""

from __future__ import annotations

import hashlib
import os
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


def kept(folder: str | Path | None, name: str, make: Callable[[], Tensor]) -> Tensor:
    """Return the rows kept as ``folder/name.safetensors``, made and written where missing.

    Raises:
        FeatureError: When the file is damaged or cannot be written.
    """
    if folder is None:
        return make()
    path = Path(folder) / f"{name}.safetensors"
    if path.exists():
        try:
            return load_file(path)[ROWS]
        except (OSError, SafetensorError, KeyError) as error:
            raise FeatureError(f"{path} is damaged ({error}); remove it") from error
    rows = make().contiguous()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({ROWS: rows}, temporary)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:  # a full disk is either, by who writes
        if path.parent.is_dir():
            temporary.unlink(missing_ok=True)
        raise FeatureError(
            f"{path} cannot be written ({error}); make room, or give another place or null: "
            "data.features"
        ) from error
    return rows


def in_chunks(count: int, size: int, make: Callable[[range], Tensor]) -> Tensor:
    """Return ``make`` of ranges of up to ``size`` numbers below ``count``, one after the other."""
    return torch.cat([make(range(n, min(n + size, count))) for n in range(0, count, size)])
