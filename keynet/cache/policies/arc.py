"""ARC: recency and frequency share the room, as what was evicted too early says."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from keynet.cache.policies.policy import Stored, check_capacity


class ARC:
    """Entries used once and entries used again are two LRU lists; a target says whose oldest goes.

    Each list remembers what left it, by identity. What comes back from there moves the target
    towards its list and counts as used again.

    Args:
        capacity: Entries or bytes; the lists remember as much again.
        seed: Not used; nothing is drawn.

    Raises:
        PolicyError: The capacity is none.

    Source: Megiddo and Modha, ARC: A Self-Tuning, Low Overhead Replacement Cache, FAST 2003,
        figure 4; names as there. The same for entries of size 1; for others lengths are sums of
        sizes, and the target moves by the size of what comes back.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self._c = check_capacity(capacity)
        self._p = 0.0  # target size of t1
        self._t1: OrderedDict[int, Stored] = OrderedDict()
        self._t2: OrderedDict[int, Stored] = OrderedDict()
        self._b1: OrderedDict[Hashable, int] = OrderedDict()
        self._b2: OrderedDict[Hashable, int] = OrderedDict()
        self._t1_size = self._t2_size = self._b1_size = self._b2_size = 0
        self._in_b2 = False  # whether what is about to be stored is in b2

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Make it the last one used again."""
        if entry in self._t2:
            self._t2.move_to_end(entry)
            return
        stored = self._t2[entry] = self._t1.pop(entry)
        self._t1_size -= stored.size
        self._t2_size += stored.size

    def on_miss(self, incoming: Stored) -> None:
        """Move the target if it went too early."""
        identity = incoming.identity
        self._in_b2 = False
        if identity in self._b1:
            step = max(1.0, self._b2_size / self._b1_size) * incoming.size
            self._p = min(float(self._c), self._p + step)
        elif identity in self._b2:
            step = max(1.0, self._b1_size / self._b2_size) * incoming.size
            self._p = max(0.0, self._p - step)
            self._in_b2 = True

    def on_insert(self, stored: Stored) -> None:
        """Put it where it belongs, and forget the oldest of what left where that is too much."""
        self._in_b2 = False
        back = self._b1.pop(stored.identity, 0)
        self._b1_size -= back
        if not back:
            back = self._b2.pop(stored.identity, 0)
            self._b2_size -= back
        if back:
            self._t2[stored.entry] = stored
            self._t2_size += stored.size
        else:
            self._t1[stored.entry] = stored
            self._t1_size += stored.size
        # The paper does so before it evicts; what is left is the same.
        while self._b1 and self._t1_size + self._b1_size > self._c:
            self._b1_size -= self._b1.popitem(last=False)[1]
        held = self._t1_size + self._t2_size
        while self._b2 and held + self._b1_size + self._b2_size > 2 * self._c:
            self._b2_size -= self._b2.popitem(last=False)[1]

    def on_remove(self, entry: int) -> None:
        """Forget it."""
        if entry in self._t1:
            self._t1_size -= self._t1.pop(entry).size
        else:
            self._t2_size -= self._t2.pop(entry).size

    def victim(self) -> int:
        """Return the oldest of the list that is over its target."""
        over = self._t1_size > self._p or (self._in_b2 and self._t1_size == self._p)
        if self._t1 and (over or not self._t2):
            entry, stored = self._t1.popitem(last=False)
            self._t1_size -= stored.size
            self._b1_size += stored.size - self._b1.pop(stored.identity, 0)
            self._b1[stored.identity] = stored.size
            return entry
        if not self._t2:
            raise LookupError("ARC holds no entry")
        entry, stored = self._t2.popitem(last=False)
        self._t2_size -= stored.size
        self._b2_size += stored.size - self._b2.pop(stored.identity, 0)
        self._b2[stored.identity] = stored.size
        return entry
