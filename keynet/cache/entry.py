"""What a cache stores, and what it says of a lookup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keynet.cache.versions import Stamp
from keynet.types import Key


class CacheError(ValueError):
    """Something that a cache cannot take; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored response and what is known of it.

    Args:
        number: From 0 on, never given twice in one cache.
        key: Of the request that was answered; ``key.alignment`` is its alignment score.
        modalities: ``image+text``, ``image`` or ``text``: those present in the request.
        response: Text, bytes, or what JSON can hold.
        cost: What the response cost to make, in any unit that is the same for all.
        nbytes: What the entry takes of a byte budget: response, code and vector.
        created: Seconds since the epoch.
        expires: Seconds since the epoch; None is never.
        stamps: Versions that were current when its request was looked up.
    """

    number: int
    key: Key
    modalities: str
    response: Any
    cost: float
    nbytes: int
    created: float
    expires: float | None
    stamps: tuple[Stamp, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A stored entry that is served.

    Args:
        entry: The entry; its response answers the request.
        similarity: Cosine of the request's key and the entry's.
        key: Of the request.
        modalities: Of the request.
        audit: Whether this hit was drawn to be asked upstream as well; tell ``report_audit`` what
            came of it.
    """

    entry: Entry
    similarity: float
    key: Key
    modalities: str
    audit: bool = False

    @property
    def response(self) -> Any:
        """The stored response."""
        return self.entry.response


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing is served; give it to ``insert`` with the answer, and nothing is encoded again.

    Args:
        key: Of the request.
        modalities: Of the request.
        stamps: Versions that were current at the lookup. An answer to it is not stored when one of
            them was raised since: it may have been made before.
        nearest: Similarity of the nearest entry, which was not enough; None without one.
    """

    key: Key
    modalities: str
    stamps: tuple[Stamp, ...]
    nearest: float | None = None
