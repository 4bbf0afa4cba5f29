"""Requests that a key model was not trained on: splits that are cut anew may hold others."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.features import content_digest
from data.log_groups import normalised
from data.requests import CaptionedSource, Source, Split, image_identity, scope_identity
from keynet.export.trained_on import read_trained_on
from keynet.types import Request

logger = logging.getLogger(__name__)


def content_numbers(requests: Sequence[Request]) -> NDArray[np.uint64]:
    """Return a number for each request [N], equal where training on one is training on the other.

    Of its picture, whatever is asked about it, or of its text where it has none: the first 8 bytes,
    little-endian, of the SHA-256 of the picture's file or pixels (``content_digest``), or of the
    text as splits compare it (``normalised``).

    Raises:
        RequestError: When the file of a picture cannot be read.
    """
    known: dict[Hashable, int] = {}
    found = []
    for request in requests:
        text = None if request.image is not None else normalised(request.text)
        name = (image_identity(request), text)
        if name not in known:
            if request.image is not None:
                digest = content_digest(request.image)
            else:
                digest = hashlib.sha256(str(text).encode("utf-8", "surrogatepass")).digest()
            known[name] = int.from_bytes(digest[:8], "little")
        found.append(known[name])
    return np.array(found, dtype=np.uint64)


class HeldOut:
    """A source without those requests of calibration and test that models were trained on.

    What is left out is counted in a warning, the first time that a split is asked for, and in
    ``left_out``: for each split of ``requests`` and ``captions`` how many (None: an export does not
    tell), of how many, and a sentence where there is something to say.

    Args:
        source: Any.
        exports: Folders of the models that are judged or calibrated.

    Raises:
        ArtefactError: When an export cannot be read.
    """

    def __init__(self, source: Source, *exports: str | Path) -> None:
        self.source = source
        self.name, self.attribution = source.name, source.attribution
        self.disjoint_phrasings = source.disjoint_phrasings
        self.left_out: dict[tuple[str, str], tuple[int | None, int, str]] = {}
        self._kept: dict[tuple[str, str], list[Request]] = {}
        told = {str(export): read_trained_on(export) for export in exports}
        self._numbers = [numbers for numbers in told.values() if numbers is not None]
        self._untold = ""
        if silent := [export for export, numbers in told.items() if numbers is None]:
            self._untold = (
                f"{', '.join(silent)} does not tell what it was trained on, so that such requests "
                "are not left out"
            )
            logger.warning("%s", self._untold)

    def requests(self, split: Split) -> list[Request]:
        """Return the requests of a split; of calibration and test those not trained on.

        Raises:
            ValueError: So little is left that no request is equivalent to another.
        """
        found = self.source.requests(split)
        if split == "train":
            return found
        kept = self._without(found, "requests", split)
        groups = {(scope_identity(request), request.group) for request in kept}
        if len(kept) < len(found) and len(groups) == len(kept):  # nothing could be served
            raise ValueError(
                f"{self.name}: the model was trained on the pictures or texts of "
                f"{len(found) - len(kept):,} of the {len(found):,} requests of the {split} split, "
                "and no two of those that are left are equivalent; give the data and options with "
                "which it was trained, or more requests that came later"
            )
        return kept

    def captions(self, split: Split) -> list[Request]:
        """Return the source's captions of a split, if it has any; as ``requests``.

        Raises:
            ValueError: None are left.
        """
        if not isinstance(self.source, CaptionedSource):
            return []
        found = self.source.captions(split)
        if split == "train":
            return found
        kept = self._without(found, "captions", split)
        if found and not kept:
            raise ValueError(
                f"{self.name}: the model was trained on the pictures of all {split} captions; "
                "give the data and options with which it was trained, or others"
            )
        return kept

    def _without(self, found: list[Request], what: str, split: str) -> list[Request]:
        if (what, split) not in self._kept:
            numbers = content_numbers(found) if self._numbers else np.empty(0, np.uint64)
            seen = np.zeros(len(found), dtype=bool)
            for trained in self._numbers:
                seen |= np.isin(numbers, trained)
            count = int(seen.sum())
            told = (
                f"{split}: {count:,} of {len(found):,} {what} left out, since the model was "
                "trained on their pictures, or on their texts where they have none (data that has "
                "changed, or other options of it, cut other splits)"
            )
            if count:
                logger.warning("%s", told)
            note = "; ".join(filter(None, [told if count else "", self._untold]))
            known = None if self._untold and not count else count
            self.left_out[what, split] = known, len(found), note
            self._kept[what, split] = [r for r, of in zip(found, seen, strict=True) if not of]
        return list(self._kept[what, split])
