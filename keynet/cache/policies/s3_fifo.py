"""S3-FIFO: three queues, of which the small one lets go early what is used once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from keynet.cache.policies.policy import Stored, check_capacity, check_share

MOST_USES = 3  # two bits
PROMOTED_FROM = 2  # uses in the small queue


class S3FIFO:
    """New entries queue in a small part; what was used there moves to the main one, the rest goes.

    The main queue gives what was used since another round. What left the small queue is remembered
    by identity, and goes to the main queue when it comes back.

    Args:
        capacity: Entries or bytes.
        seed: Not used; nothing is drawn.
        small: Share of the capacity that the small queue may fill.

    Raises:
        PolicyError: The capacity or the share is none.

    Source: Yang et al., FIFO Queues are All You Need for Cache Eviction, SOSP 2023, algorithm 1.
        Uses are counted anew in the main queue; what is remembered is as much as it holds by size.
        Until something goes for the first time, what the small queue has no room for goes to the
        main one, of which the paper says nothing.
    """

    def __init__(self, capacity: int, seed: int = 0, *, small: float = 0.1) -> None:
        check_capacity(capacity)
        self._small_most = int(capacity * check_share("small", small))
        self._ghost_most = int(capacity * (1 - small))
        self._small: OrderedDict[int, Stored] = OrderedDict()
        self._main: OrderedDict[int, Stored] = OrderedDict()
        self._ghost: OrderedDict[Hashable, int] = OrderedDict()
        self._small_size = self._ghost_size = 0
        self._uses: dict[int, int] = {}
        self._evicted = False  # ever
        self._back: tuple[Hashable] | None = None  # remembered, and about to be stored

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Count a use."""
        if self._uses[entry] < MOST_USES:
            self._uses[entry] += 1

    def on_miss(self, incoming: Stored) -> None:
        """Recognise what left the small queue, before more leaves it."""
        self._back = (incoming.identity,) if self._recall(incoming.identity) else None

    def on_insert(self, stored: Stored) -> None:
        """Put it at the end of its queue."""
        back = self._back == (stored.identity,) or self._recall(stored.identity)
        self._back = None
        self._uses[stored.entry] = 0
        full = self._small_size + stored.size > self._small_most
        if back or (full and not self._evicted):
            self._main[stored.entry] = stored
        else:
            self._small[stored.entry] = stored
            self._small_size += stored.size

    def on_remove(self, entry: int) -> None:
        """Forget it."""
        del self._uses[entry]
        if entry in self._small:
            self._small_size -= self._small.pop(entry).size
        else:
            del self._main[entry]

    def victim(self) -> int:
        """Return the first that was not used enough."""
        if not self._uses:
            raise LookupError("S3-FIFO holds no entry")
        self._evicted = True
        from_small = self._small_size >= self._small_most or not self._main
        while from_small and self._small:
            entry, stored = self._small.popitem(last=False)
            self._small_size -= stored.size
            if self._uses[entry] < PROMOTED_FROM:
                del self._uses[entry]
                self._remember(stored)
                return entry
            self._uses[entry] = 0
            self._main[entry] = stored
        while True:
            entry, stored = self._main.popitem(last=False)
            if not self._uses[entry]:
                del self._uses[entry]
                return entry
            self._uses[entry] -= 1
            self._main[entry] = stored

    def _recall(self, identity: Hashable) -> bool:
        """Return whether it is remembered, and forget it."""
        size = self._ghost.pop(identity, 0)
        self._ghost_size -= size
        return size > 0

    def _remember(self, stored: Stored) -> None:
        self._recall(stored.identity)
        self._ghost_size += stored.size
        self._ghost[stored.identity] = stored.size
        while self._ghost_size > self._ghost_most:
            self._ghost_size -= self._ghost.popitem(last=False)[1]
