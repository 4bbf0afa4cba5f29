"""What a cache stores, and what it says of a lookup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keynet.types import Key


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored response and what is known of it.

    Args:
        number: From 0 on, never given twice in one cache.
        key: Of the request that was answered; ``key.alignment`` is its alignment score.
        response: Text, bytes, or what JSON can hold.
        modalities: ``image+text``, ``image`` or ``text``: those present in the request.
        cost: What the response cost to make, in any unit that is the same for all.
        nbytes: What the entry takes of a byte budget.
        created: Seconds since the epoch.
        expires: Seconds since the epoch; None is never.
        versions: Of each grain that the request named, when it was stored.
    """

    number: int
    key: Key
    response: Any
    modalities: str
    cost: float
    nbytes: int
    created: float
    expires: float | None = None
    versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """A stored entry that is served.

    Args:
        entry: The entry; ``entry.response`` answers the request.
        similarity: Cosine of the request's key and the entry's.
        key: Of the request.
        audit: Whether this hit was drawn to be asked upstream as well; tell the cache by
            ``report_audit`` what came of it.
    """

    entry: Entry
    similarity: float
    key: Key
    audit: bool = False

    @property
    def response(self) -> Any:
        return self.entry.response


@dataclass(frozen=True, slots=True)
class Miss:
    """Nothing is served.

    Args:
        key: Of the request; give it to ``insert_key`` to store the answer without encoding again.
        nearest: Similarity of the nearest entry that was not accepted; None without one.
    """

    key: Key
    nearest: float | None = None
