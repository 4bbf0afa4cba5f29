"""What a cache holds and has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """What a cache holds, and has done since it was opened.

    Args:
        entries: Held.
        nbytes: Of all entries, whatever their key space; see ``Entry.nbytes``.
        lookups: Hits and misses.
        hits: Served.
        inserts: Stored.
        evictions: Entries that went for another.
        expired: Entries that were removed since their time was over.
        outdated: Entries that were removed since their version was raised.
        too_late: Answers that were not stored, since their version was raised meanwhile.
        too_large: Answers that were not stored, since they are larger than the cache.
        audits: Hits that were asked upstream as well.
        false_hits: Reported, whose entry was removed.
    """

    entries: int
    nbytes: int
    lookups: int
    hits: int
    inserts: int
    evictions: int
    expired: int
    outdated: int
    too_late: int
    too_large: int
    audits: int
    false_hits: int

    @property
    def hit_rate(self) -> float | None:
        """Hits / lookups; None before the first."""
        return self.hits / self.lookups if self.lookups else None
