"""What every replacement policy is: told of hits, misses and entries, it names the next to go."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class PolicyError(ValueError):
    """Something that a policy cannot take; the message says what was expected."""


class Stored(NamedTuple):
    """What a policy is told of an entry.

    Args:
        entry: Its number; another each time something is stored.
        identity: Equal for requests that are the same to an exact cache. What was evicted is
            recognised by it when it comes again (ARC's ghosts, for instance).
        size: In the unit of the policy's capacity: 1, or bytes.
        cost: What the response cost to make.
        alignment: Cosine of the request's modalities; None where one is absent.
        vector: float32 [D], unit norm; None in a plain trace.
        scope: Entries of two scopes cannot stand in for each other.
    """

    entry: int
    identity: Hashable
    size: int = 1
    cost: float = 1.0
    alignment: float | None = None
    vector: NDArray[np.float32] | None = None
    scope: str = ""


class Policy(Protocol):
    """A replacement policy, made by ``(capacity, seed=0)``; the cache calls it under one lock.

    For a request that is served: ``on_hit``. For one that is stored: ``on_miss``, then ``victim``
    until there is room, then ``on_insert``. ``on_remove`` for an entry that goes for another
    reason: it expired, its version was raised, it was a false hit. Where storing failed no
    ``on_insert`` follows an ``on_miss``, and what had gone comes back by ``on_insert`` alone.
    """

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Learn that an entry was served, by an equal key or by one as similar as given."""
        ...

    def on_miss(self, incoming: Stored) -> None:
        """Learn what is about to be stored, before anything goes for it."""
        ...

    def on_insert(self, stored: Stored) -> None:
        """Take an entry in."""
        ...

    def on_remove(self, entry: int) -> None:
        """Forget an entry that is gone, its history too."""
        ...

    def victim(self) -> int:
        """Choose the entry to go, and count it as gone.

        Raises:
            LookupError: The policy holds no entry.
        """
        ...


def check_capacity(capacity: int) -> int:
    """Return a capacity.

    Raises:
        PolicyError: It is no whole number, 1 or more.
    """
    return check_whole("capacity", capacity, 1)


def check_whole(name: str, value: int, least: int) -> int:
    """Return a parameter that counts.

    Raises:
        PolicyError: It is no whole number, or less than ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise PolicyError(f"{name} is {value!r}; expected a whole number, {least} or more")
    return int(value)


def check_share(name: str, value: float) -> float:
    """Return a parameter that is a share.

    Raises:
        PolicyError: It is no number in [0, 1].
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise PolicyError(f"{name} is {value!r}; expected a number, 0 to 1")
    return float(value)
