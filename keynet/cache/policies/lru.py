"""Least recently used."""

from __future__ import annotations

from collections import OrderedDict

from keynet.cache.policies.policy import Stored, check_capacity


class LRU:
    """The entry that was used longest ago goes.

    Args:
        capacity: Not used; the order alone decides.
        seed: Not used; nothing is drawn.

    Raises:
        PolicyError: The capacity is none.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        check_capacity(capacity)
        # Not a dict: to find its first key it walks over all that went before.
        self._order: OrderedDict[int, None] = OrderedDict()

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Make it the one used last."""
        self._order.move_to_end(entry)

    def on_miss(self, incoming: Stored) -> None:
        """Learn nothing."""

    def on_insert(self, stored: Stored) -> None:
        """Make it the one used last."""
        self._order[stored.entry] = None

    def on_remove(self, entry: int) -> None:
        """Forget it."""
        del self._order[entry]

    def victim(self) -> int:
        """Return the one that was used longest ago."""
        if not self._order:
            raise LookupError("LRU holds no entry")
        return self._order.popitem(last=False)[0]
