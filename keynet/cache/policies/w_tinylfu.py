"""W-TinyLFU: what leaves a small window displaces only what was asked for less often."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from keynet.cache.policies.policy import Stored, check_capacity, check_share

SAMPLE = 10  # requests an entry, after which all counts are halved
MOST_ASKED = 15  # four bits
PROTECTED = 0.8  # of the main part


class WTinyLFU:
    """New entries enter a small LRU window; the main part is a segmented LRU.

    When something must go, the oldest of the window and the oldest on probation are compared: the
    one that was asked for less often of late goes, and the window's on a tie. Requests are counted
    by identity, of what is held and of what is not; a hit by a similar key counts for the entry.

    Args:
        capacity: Entries or bytes.
        seed: Not used; nothing is drawn.
        window: Share of the capacity for the window; 1 entry or byte at least.

    Raises:
        PolicyError: The capacity or the share is none.

    Source: Einziger, Friedman and Manes, TinyLFU: A Highly Efficient Cache Admission Policy, ACM
        Transactions on Storage 13(4), 2017, sections 3 and 4. Counts are exact in place of a
        sketch, at most ``SAMPLE`` numbers an entry, so nothing is hashed and nothing collides.
    """

    def __init__(self, capacity: int, seed: int = 0, *, window: float = 0.01) -> None:
        check_capacity(capacity)
        self._window_most = max(1, int(capacity * check_share("window", window)))
        self._protected_most = int((capacity - self._window_most) * PROTECTED)
        self._stored: dict[int, Stored] = {}
        self._window: OrderedDict[int, None] = OrderedDict()
        self._probation: OrderedDict[int, None] = OrderedDict()
        self._protected: OrderedDict[int, None] = OrderedDict()
        self._window_size = self._protected_size = 0
        self._incoming = 0  # size of what is about to be stored
        self._asked: dict[Hashable, int] = {}
        self._counted = 0
        self._most_held = 1

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Count a request, and make it the last used of its part."""
        stored = self._stored[entry]
        self._count(stored.identity)
        if entry in self._window:
            self._window.move_to_end(entry)
        elif entry in self._protected:
            self._protected.move_to_end(entry)
        else:
            del self._probation[entry]
            self._protected[entry] = None
            self._protected_size += stored.size
            while self._protected_size > self._protected_most:
                oldest, _ = self._protected.popitem(last=False)
                self._protected_size -= self._stored[oldest].size
                self._probation[oldest] = None

    def on_miss(self, incoming: Stored) -> None:
        """Count a request."""
        self._incoming = incoming.size
        self._count(incoming.identity)

    def on_insert(self, stored: Stored) -> None:
        """Put it into the window; what that has no room for goes to the main part."""
        self._incoming = 0
        self._stored[stored.entry] = stored
        self._most_held = max(self._most_held, len(self._stored))
        self._window[stored.entry] = None
        self._window_size += stored.size
        while self._window_size > self._window_most:
            self._to_probation()

    def on_remove(self, entry: int) -> None:
        """Forget it."""
        stored = self._stored.pop(entry)
        self._asked.pop(stored.identity, None)
        self._leave(entry, stored.size)

    def victim(self) -> int:
        """Return the one that was asked for less often, of the two that may go."""
        if not self._stored:
            raise LookupError("W-TinyLFU holds no entry")
        entry = self._loser()
        self._leave(entry, self._stored.pop(entry).size)
        return entry

    def _loser(self) -> int:
        crowded = self._window_size + self._incoming > self._window_most
        main = next(iter(self._probation or self._protected), None)
        candidate = next(iter(self._window), None) if crowded or main is None else None
        if main is None or candidate is None:
            return next(entry for entry in (main, candidate) if entry is not None)
        if self._frequency(candidate) <= self._frequency(main):
            return candidate
        self._to_probation()
        return main

    def _to_probation(self) -> None:
        oldest, _ = self._window.popitem(last=False)
        self._window_size -= self._stored[oldest].size
        self._probation[oldest] = None

    def _leave(self, entry: int, size: int) -> None:
        if entry in self._window:
            del self._window[entry]
            self._window_size -= size
        elif entry in self._protected:
            del self._protected[entry]
            self._protected_size -= size
        else:
            del self._probation[entry]

    def _frequency(self, entry: int) -> int:
        return self._asked.get(self._stored[entry].identity, 0)

    def _count(self, identity: Hashable) -> None:
        self._asked[identity] = min(MOST_ASKED, self._asked.get(identity, 0) + 1)
        self._counted += 1
        if self._counted >= SAMPLE * self._most_held:
            self._asked = {one: count // 2 for one, count in self._asked.items() if count > 1}
            self._counted //= 2
