"""Budgets of entries and bytes, and the policy that says what goes when one is exceeded."""

from __future__ import annotations

import threading
from collections.abc import Callable

from keynet.cache.entry import CacheError
from keynet.cache.policies.policy import Policy, Stored


class Eviction:
    """What a cache holds, and what must go for the next entry. Any thread may call it.

    Args:
        policy: Makes one of a capacity: of bytes where they are bounded, else of entries.
        max_entries: None is any number.
        max_bytes: None is any size.

    Raises:
        CacheError: A budget is none.
    """

    def __init__(
        self, policy: Callable[[int], Policy], max_entries: int | None, max_bytes: int | None
    ) -> None:
        for name, budget in (("max_entries", max_entries), ("max_bytes", max_bytes)):
            if budget is not None and (type(budget) is not int or budget < 1):
                raise CacheError(f"{name} is {budget!r}; expected 1 or more, or None for no bound")
        self.max_entries, self.max_bytes = max_entries, max_bytes
        capacity = max_entries if max_bytes is None else max_bytes
        self._policy = None if capacity is None else policy(capacity)
        self._nbytes: dict[int, int] = {}
        self.nbytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._nbytes)

    def fits(self, nbytes: int) -> bool:
        """Return whether an entry can be held at all."""
        return self.max_bytes is None or nbytes <= self.max_bytes

    def make_room(self, incoming: Stored, nbytes: int) -> list[int]:
        """Return the entries that go for one that fits, and count them as gone."""
        if self._policy is None:
            return []
        gone = []
        with self._lock:
            self._policy.on_miss(self._sized(incoming, nbytes))
            while not self._has_room(nbytes):
                victim = self._policy.victim()
                self._forget(victim)
                gone.append(victim)
        return gone

    def insert(self, stored: Stored, nbytes: int) -> None:
        """Take an entry in."""
        with self._lock:
            self._nbytes[stored.entry] = nbytes
            self.nbytes += nbytes
            if self._policy is not None:
                self._policy.on_insert(self._sized(stored, nbytes))

    def hit(self, entry: int, similarity: float) -> bool:
        """Tell the policy of a hit; return whether the entry is still held."""
        with self._lock:
            held = entry in self._nbytes
            if self._policy is not None and held:
                self._policy.on_hit(entry, similarity)
        return held

    def remove(self, entry: int) -> None:
        """Count an entry as gone; one that is gone is passed over."""
        with self._lock:
            if entry in self._nbytes:
                self._forget(entry)
                if self._policy is not None:
                    self._policy.on_remove(entry)

    def _has_room(self, nbytes: int) -> bool:
        many = self.max_entries is not None and len(self._nbytes) + 1 > self.max_entries
        large = self.max_bytes is not None and self.nbytes + nbytes > self.max_bytes
        return not (many or large)

    def _forget(self, entry: int) -> None:
        self.nbytes -= self._nbytes.pop(entry)

    def _sized(self, stored: Stored, nbytes: int) -> Stored:
        return stored if self.max_bytes is None else stored._replace(size=nbytes)
