"""SIEVE: a queue in which nothing moves, and a hand that spares what was used."""

from __future__ import annotations

from keynet.cache.policies.policy import Stored, check_capacity


class SIEVE:
    """The first entry that was not used since the hand last passed it goes.

    The hand goes from the oldest entry to the newest and starts over; what it finds used it marks
    unused and leaves where it is.

    Args:
        capacity: Not used; the queue alone decides.
        seed: Not used; nothing is drawn.

    Raises:
        PolicyError: The capacity is none.

    Source: Zhang et al., SIEVE is Simpler than LRU, NSDI 2024, algorithm 1. The same; an entry that
        is removed under the hand leaves it on the next newer one.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        check_capacity(capacity)
        self._used: dict[int, bool] = {}
        self._older: dict[int | None, int | None] = {None: None}  # of None: the newest
        self._newer: dict[int | None, int | None] = {None: None}  # of None: the oldest
        self._hand: int | None = None  # None: at the oldest

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Mark it used."""
        self._used[entry] = True

    def on_miss(self, incoming: Stored) -> None:
        """Learn nothing."""

    def on_insert(self, stored: Stored) -> None:
        """Put it at the newest end, unused."""
        entry, older, newer = stored.entry, self._older, self._newer
        newest = older[None]
        older[entry], newer[entry] = newest, None
        newer[newest] = older[None] = entry
        self._used[entry] = False

    def on_remove(self, entry: int) -> None:
        """Take it out of the queue."""
        del self._used[entry]
        older, newer = self._older.pop(entry), self._newer.pop(entry)
        self._newer[older], self._older[newer] = newer, older
        if self._hand == entry:
            self._hand = newer

    def victim(self) -> int:
        """Return the first unused one from the hand on."""
        used, newer, hand = self._used, self._newer, self._hand
        if not used:
            raise LookupError("SIEVE holds no entry")
        while hand is None or used[hand]:
            if hand is not None:
                used[hand] = False
            hand = newer[hand]  # of None: the oldest
        self._hand = hand
        self.on_remove(hand)
        return hand
