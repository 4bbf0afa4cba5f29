"""What a data source promises to training and evaluation."""

from __future__ import annotations

from typing import Literal, Protocol

from keynet.types import Request

Split = Literal["train", "calibration", "test"]


class Source(Protocol):
    """A data source: requests whose groups say which of them are equivalent.

    Every request carries ``group``, ``entity``, ``intent`` and ``response``, and in ``tags``:
    ``picture`` (picture file: splits and stores are cut by it), ``family`` (kind of intent),
    ``phrasing``, ``negated`` ("1" or "0"), ``argument`` and, where there are several, ``vendor``.
    """

    name: str
    attribution: tuple[str, ...]
    disjoint_phrasings: bool  # enough phrasings that a store and its queries need not share one

    def requests(self, split: Split) -> list[Request]:
        """Return the requests of a split; the same seed gives the same list."""
        ...

    def captions(self) -> dict[str, list[str]]:
        """Return texts that name each training entity, for cross-modal alignment; may be empty."""
        ...
