"""Entries by a rank that only rises, the lowest first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

Rank = tuple[float, int]  # the second settles ties, so that no two are equal

SLACK = 64


class RisingRanks:
    """A heap that is told of a rise for nothing: an entry moves when it comes to the top.

    It holds at most twice as much as there are entries, and ``SLACK``.
    """

    def __init__(self) -> None:
        self._rank: dict[int, Rank] = {}
        self._heap: list[tuple[Rank, int]] = []

    def __len__(self) -> int:
        return len(self._rank)

    def add(self, entry: int, rank: Rank) -> None:
        """Take an entry in."""
        self._rank[entry] = rank
        heappush(self._heap, (rank, entry))

    def raise_to(self, entry: int, rank: Rank) -> None:
        """Give an entry a rank that is not below the one it has."""
        self._rank[entry] = rank

    def remove(self, entry: int) -> None:
        """Forget an entry."""
        del self._rank[entry]
        if len(self._heap) > 2 * len(self._rank) + SLACK:
            self._heap = [(rank, entry) for entry, rank in self._rank.items()]
            heapify(self._heap)

    def pop(self) -> tuple[int, Rank]:
        """Forget the entry of the lowest rank, and return both."""
        while True:
            rank, entry = self._heap[0]
            now = self._rank.get(entry)
            if now is None:
                heappop(self._heap)
            elif now != rank:
                heapreplace(self._heap, (now, entry))
            else:
                heappop(self._heap)
                del self._rank[entry]
                return entry, rank
