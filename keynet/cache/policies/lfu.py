"""Least frequently used."""

from __future__ import annotations

from collections import OrderedDict

from keynet.cache.policies.policy import Stored, check_capacity


class LFU:
    """The entry that was used least often goes; of several, the one that was used longest ago.

    Uses are counted while an entry is held and forgotten with it. A hit by a similar key is a use
    of the entry like any other, so equivalent requests count as one (SPEC C5).

    Args:
        capacity: Not used; the counts alone decide.
        seed: Not used; nothing is drawn.

    Raises:
        PolicyError: The capacity is none.

    Source: Shah, Mitra and Matani, An O(1) Algorithm for Implementing the LFU Cache Eviction
        Scheme, 2010.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        check_capacity(capacity)
        self._uses: dict[int, int] = {}
        self._used: dict[int, OrderedDict[int, None]] = {}  # by number of uses, oldest first
        self._least = 1

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Count a use."""
        uses = self._uses[entry]
        self._leave(entry, uses)
        if self._least == uses and uses not in self._used:
            self._least = uses + 1
        self._enter(entry, uses + 1)

    def on_miss(self, incoming: Stored) -> None:
        """Learn nothing."""

    def on_insert(self, stored: Stored) -> None:
        """Count the first use."""
        self._enter(stored.entry, 1)
        self._least = 1

    def on_remove(self, entry: int) -> None:
        """Forget it."""
        self._leave(entry, self._uses.pop(entry))

    def victim(self) -> int:
        """Return the one that was used least."""
        if not self._uses:
            raise LookupError("LFU holds no entry")
        if self._least not in self._used:  # the last of them was removed
            self._least = min(self._used)
        entry = next(iter(self._used[self._least]))
        self.on_remove(entry)
        return entry

    def _enter(self, entry: int, uses: int) -> None:
        self._uses[entry] = uses
        self._used.setdefault(uses, OrderedDict())[entry] = None

    def _leave(self, entry: int, uses: int) -> None:
        used = self._used[uses]
        del used[entry]
        if not used:
            del self._used[uses]
