"""What a data source promises to training and evaluation."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from keynet.cache.scope import scope_digest
from keynet.types import Request

Split = Literal["train", "calibration", "test"]


class Source(Protocol):
    """A data source: requests whose groups say which of them are equivalent.

    Every request carries ``group`` and ``response``; one with an image also ``entity`` (what it
    shows) and the tag ``picture`` (which drawing or photograph it is, the same in all its
    encodings: training tells pictures apart by it, and stores are cut by it), one with a text also
    ``intent`` and the tags ``family`` (kind of intent), ``phrasing``, ``negated`` ("1" or "0") and
    ``argument``. The tag ``vendor`` says who drew it, where several did.
    """

    name: str
    attribution: tuple[str, ...]
    disjoint_phrasings: bool  # enough phrasings that a store and its queries need not share one

    def requests(self, split: Split) -> list[Request]:
        """Return the requests of a split; the same seed gives the same list."""
        ...


CAPTION = "caption"  # family of a text that describes its picture instead of asking about it


@runtime_checkable
class CaptionedSource(Protocol):
    """A source that also knows texts that describe its pictures.

    Teachers of both modalities are trained and judged on them. Each is a request with an image, a
    text of the family ``CAPTION`` and an entity; the pictures of ``train`` are those of its
    training requests.
    """

    def captions(self, split: Split) -> list[Request]:
        """Return the captioned pictures of a split, picture by picture."""
        ...


def image_identity(request: Request) -> Hashable:
    """Return what is equal for the same picture: bytes or path, or which array object it is."""
    return id(request.image) if isinstance(request.image, np.ndarray) else request.image


def scope_identity(request: Request) -> str:
    """Return what is equal where all that must match exactly is, whatever modalities there are."""
    return scope_digest(request.scope, True, True)


def check_equivalents(name: str, requests: Sequence[Request]) -> None:
    """Raise ValueError unless two different requests of a training split are equivalent."""
    first: dict[Hashable, Hashable] = {}
    for request in requests:
        content = image_identity(request), request.text
        if first.setdefault((scope_identity(request), request.group), content) != content:
            return
    raise ValueError(
        f"{name}: the training split (requests: {len(requests):,}) has no two different requests "
        "that are equivalent, so there is nothing to learn; give more requests, or say which are "
        "equivalent (docs/own-data.md)"
    )
