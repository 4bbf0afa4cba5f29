"""The words of the project: request, batch, key, key space.

Shapes, everywhere: B requests, S pixels a side, L tokens, D key width, K code bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

CODE_BITS = (64, 128, 256, 512)


class RequestError(ValueError):
    """A request that cannot become a key; the message says what to change."""


@dataclass(frozen=True)
class Request:
    """One question to a multimodal model: an optional image, an optional text, and a scope.

    Args:
        image: Encoded bytes, a path, or a uint8 array [H, W, 3]; None when absent.
        text: The question; None when absent. Empty text is an error, not an absence.
        scope: All that must match exactly (serving model, system prompt, tenant, ...).
        response: The true answer where it is known.
        group: Equal group = equivalent: the response of one may be served for the other.
        entity: What the picture shows (for splits by concept).
        intent: The canonical question with its argument and negation.
        tags: Free labels of a data source (vendor, language, phrasing, picture file, ...).

    Raises:
        RequestError: When both image and text are absent.
    """

    image: bytes | str | Path | np.ndarray | None = None
    text: str | None = None
    scope: Mapping[str, Any] = field(default_factory=dict)
    response: str | None = None
    group: str | None = None
    entity: str | None = None
    intent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.image is None and self.text is None:
            raise RequestError("request has neither image nor text; give at least one of them")

    @property
    def modalities(self) -> str:
        """Those present: ``image+text``, ``image`` or ``text``."""
        present = {"image": self.image is not None, "text": self.text is not None}
        return "+".join(name for name, there in present.items() if there)


class RequestBatch(NamedTuple):
    """Requests as tensors; an absent modality is zeros with a false mask.

    A named tuple, so that trainers move it between devices as it is.
    """

    images: Tensor  # uint8 [B, 3, S, S]
    image_mask: Tensor  # bool [B]
    tokens: Tensor  # int64 [B, L]
    token_mask: Tensor  # bool [B, L]
    group: Tensor  # int64 [B]
    sample_id: Tensor  # int64 [B]


class TrainingBatch(NamedTuple):
    """A batch in which pictures and texts that several requests share stand once.

    ``images`` is [U, 3, S, S] and ``tokens`` and ``token_mask`` are [V, L], U and V at most B;
    the indices say which row each request takes.
    """

    images: Tensor  # uint8 [U, 3, S, S]
    image_mask: Tensor  # bool [B]
    tokens: Tensor  # int64 [V, L]
    token_mask: Tensor  # bool [V, L]
    image_index: Tensor  # int64 [B]
    text_index: Tensor  # int64 [B]
    group: Tensor  # int64 [B]; equal = equivalent
    entity: Tensor  # int64 [B]; equal = the pictures show the same, -1 without a picture
    original: Tensor  # int64 [B]; equal = encodings of one picture, -1 without a picture
    intent: Tensor  # int64 [B]; equal = the texts ask the same, -1 without a text
    picture_id: Tensor  # int64 [B], number of the picture in Samples, -1 without one
    text_id: Tensor  # int64 [B], number of the text in Samples, -1 without one
    described: Tensor  # bool [B], the text describes the picture: a caption, no question
    scope: Tensor  # int64 [B]; equal = all that must match exactly does


class Samples(NamedTuple):
    """The distinct pictures and texts of a training, by the numbers that batches carry.

    A picture in several encodings is several pictures. ``held_out`` makes requests that are not
    trained on, to measure teachers by; it is called when something needs them.
    """

    pictures: Sequence[bytes | str | Path | np.ndarray]
    texts: Sequence[str]
    pairs: Tensor  # int64 [N, 2], numbers of a picture and of a text that describes it
    held_out: Callable[[], Sequence[Request]]


class KeyOutput(NamedTuple):
    """What the key model makes of a batch.

    ``key``, ``image`` and ``text`` have unit norm (``image`` and ``text`` are zero where the
    modality is absent); the signs of ``logits`` (``>= 0`` is 1) are the code; ``alignment`` is the
    cosine of image and text, NaN where one is absent.
    """

    key: Tensor  # [B, D]
    image: Tensor  # [B, C], C = D but where the key is both side by side
    text: Tensor  # [B, C]
    logits: Tensor  # [B, K]
    alignment: Tensor  # [B]


@dataclass(frozen=True)
class KeySpace:
    """Where keys can be compared: same name, version, widths and frozen weights."""

    name: str
    version: int
    dim: int
    bits: int
    fingerprint: str

    def require_same(self, other: KeySpace) -> None:
        """Raise ValueError unless keys of ``other`` may be compared with keys of this space."""
        if self != other:
            raise ValueError(
                f"keys of two key spaces cannot be compared: {self.name} v{self.version} "
                f"({self.fingerprint}) and {other.name} v{other.version} ({other.fingerprint}); "
                "encode both requests with one exported model"
            )


@dataclass(frozen=True)
class Key:
    """The key of one request.

    Args:
        space: Key space the vector and code belong to.
        vector: float32 [D], unit norm.
        code: uint8 [K/8], most significant bit first.
        alignment: Cosine of the two modalities; None where one is absent.
        scope_digest: Hex digest of everything that must match exactly.
    """

    space: KeySpace
    vector: np.ndarray
    code: np.ndarray
    alignment: float | None
    scope_digest: str

    def __str__(self) -> str:
        return f"kn1:{self.space.fingerprint}:{self.scope_digest}:{self.code.tobytes().hex()}"
