"""LRU-K: the K-th last use decides, not the last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from keynet.cache.policies.policy import Stored, check_capacity, check_whole
from keynet.cache.policies.rising import Rank, RisingRanks


class LRUK:
    """The entry whose k-th last use was longest ago goes; first those that had fewer uses.

    Of those with fewer than k uses, the one that was used longest ago goes.

    Args:
        capacity: Entries or bytes.
        seed: Not used; nothing is drawn.
        k: How many uses count.
        retained: How much of what went keeps its history, in the unit of the capacity; what went
            first is forgotten first. None is as much as the capacity; 0 forgets at once.

    Raises:
        PolicyError: The capacity or a parameter is none.

    Source: O'Neil, O'Neil and Weikum, The LRU-K Page Replacement Algorithm for Database Disk
        Buffering, SIGMOD 1993, figure 2.1. Time is counted in requests, all references are
        uncorrelated (their period is 0), and history is retained for so much instead of so long.
    """

    def __init__(
        self, capacity: int, seed: int = 0, *, k: int = 2, retained: int | None = None
    ) -> None:
        check_capacity(capacity)
        self._k = check_whole("k", k, 1)
        self._retained = capacity if retained is None else check_whole("retained", retained, 0)
        self._tick = 0
        self._stored: dict[int, Stored] = {}
        self._times: dict[int, list[int]] = {}  # of the last k uses, oldest first
        self._ranks = RisingRanks()
        self._gone: OrderedDict[Hashable, tuple[list[int], int]] = OrderedDict()  # times and size
        self._gone_size = 0

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Note the time of a use."""
        times = self._times[entry]
        self._use(times)
        self._ranks.raise_to(entry, self._rank(times))

    def on_miss(self, incoming: Stored) -> None:
        """Learn nothing."""

    def on_insert(self, stored: Stored) -> None:
        """Note the time of a use, after those from before it went."""
        times, size = self._gone.pop(stored.identity, ([], 0))
        self._gone_size -= size
        self._use(times)
        self._stored[stored.entry], self._times[stored.entry] = stored, times
        self._ranks.add(stored.entry, self._rank(times))

    def on_remove(self, entry: int) -> None:
        """Forget it."""
        self._ranks.remove(entry)
        del self._stored[entry], self._times[entry]

    def victim(self) -> int:
        """Return the one whose k-th last use was longest ago."""
        if not self._ranks:
            raise LookupError("LRU-K holds no entry")
        entry, _ = self._ranks.pop()
        stored, times = self._stored.pop(entry), self._times.pop(entry)
        self._gone_size += stored.size - self._gone.pop(stored.identity, ([], 0))[1]
        self._gone[stored.identity] = times, stored.size
        while self._gone_size > self._retained:
            self._gone_size -= self._gone.popitem(last=False)[1][1]
        return entry

    def _use(self, times: list[int]) -> None:
        self._tick += 1
        times.append(self._tick)
        del times[: -self._k]

    def _rank(self, times: list[int]) -> Rank:
        return times[0] if len(times) == self._k else 0, times[-1]
