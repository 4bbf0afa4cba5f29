"""The entries of a cache: what is stored, the index of their keys and the budget, in agreement.

The store is the truth. What the index holds beyond it is never served, and what either lacks is
mended when the folder is opened.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from keynet.cache.eviction import Eviction
from keynet.cache.index import CodeIndex
from keynet.cache.policies.policy import Stored
from keynet.cache.store import EntryStore, Row
from keynet.types import Key, KeySpace

RESTORED_AT_ONCE = 10_000


class Entries:
    """Entries by number and by key. ``change`` is held by whoever adds or removes.

    Args:
        folder: One that is there; None keeps all in memory.
        spaces: Key spaces that are served; entries of others stay until they are evicted.
        eviction: Of an empty cache.

    Raises:
        CacheFilesError: The folder is in use, damaged, of a newer format or of something else.
        OSError: The folder cannot be read or written.
    """

    def __init__(self, folder: Path | None, spaces: Sequence[KeySpace], eviction: Eviction) -> None:
        self.change = threading.Lock()
        self._eviction = eviction
        self._used: dict[int, float] = {}
        self._indexes: dict[str, CodeIndex] = {}
        with ExitStack() as opened:
            self.store = EntryStore(folder, spaces)
            opened.callback(self.store.close)
            for space in spaces:
                mark = space.fingerprint
                index = CodeIndex(space, None if folder is None else folder / f"index-{mark}")
                opened.callback(index.close)
                self._indexes[mark] = index
            self._next = self.store.next_number()
            self.newest = 0.0  # time at which the last entry was stored
            self._restore()
            opened.pop_all()

    def __len__(self) -> int:
        return len(self._eviction)

    def count(self, key_space: str) -> int:
        """Return how many entries a key space has."""
        return len(self._indexes[key_space])

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self._eviction.nbytes

    def fits(self, nbytes: int) -> bool:
        """Return whether an entry can be held at all."""
        return self._eviction.fits(nbytes)

    def take_number(self) -> int:
        """Return a number that no entry ever had."""
        self._next += 1
        return self._next - 1

    def near(self, probe: Key, most: int, radius: int | None) -> list[Row]:
        """Return the entries nearest to a key in its scope."""
        found = self._indexes[probe.space.fingerprint].search(probe, most, radius)
        rows = (self.store.read(one.entry) for one in found)
        return [row for row in rows if row is not None and row.digest == probe.scope_digest]

    def hit(self, number: int, similarity: float, now: float) -> None:
        """Count an entry as used."""
        if self._eviction.hit(number, similarity):
            self._used[number] = now

    def add(self, row: Row, kind: int, content: bytes) -> list[int]:
        """Store an entry in the place of its like, and return the entries that went for it.

        Raises:
            OSError: The disk is full or broken; nothing has changed.
        """
        number, nbytes = row.entry.number, row.entry.nbytes
        index = self._indexes[row.entry.key.space.fingerprint]
        same = self.store.with_identity(row.identity)
        if same is not None:
            self._eviction.remove(same)
        evicted = self._eviction.make_room(_stored(row), nbytes)
        gone = self._rows(evicted if same is None else [*evicted, same])
        try:
            with self.store.transaction():
                self.store.remove(gone)
                self.store.add(row, kind, content)
                index.insert(number, _probe(row))
        except BaseException:
            for one in gone:
                self._eviction.insert(_stored(one), one.entry.nbytes)
            if number in index:
                with suppress(OSError):  # without a row it is never served
                    index.remove(number)
            raise
        self._forget(gone)
        self._eviction.insert(_stored(row), nbytes)
        self.newest = row.entry.created
        return evicted

    def remove(self, numbers: Sequence[int]) -> list[Row]:
        """Remove entries, and return those that were there.

        Raises:
            OSError: The disk is full or broken; nothing has changed.
        """
        rows = self._rows(numbers)
        if rows:
            with self.store.transaction():
                self.store.remove(rows)
            for row in rows:
                self._eviction.remove(row.entry.number)
            self._forget(rows)
        return rows

    def flush(self, learned: Any) -> None:
        """Return when all is on the disk, with what the cache has learned."""
        used = list(self._used.items())
        with self.store.transaction():
            self.store.set_used([(when, number) for number, when in used])
            self.store.set_about("learned", learned)
        for number, when in used:
            if self._used.get(number) == when:
                self._used.pop(number, None)
        self.store.flush()
        for index in self._indexes.values():
            index.flush()

    def close(self) -> None:
        """Let others open the folder."""
        with ExitStack() as last:
            last.callback(self.store.close)
            for index in self._indexes.values():
                last.callback(index.close)

    def _restore(self) -> None:
        """Take what the store holds, as far as the budget allows, and mend the indexes."""
        gone = []
        for row in self.store.by_use():
            number, nbytes = row.entry.number, row.entry.nbytes
            self.newest = max(self.newest, row.entry.created)
            if self.fits(nbytes):
                gone += self._eviction.make_room(_stored(row), nbytes)
                self._eviction.insert(_stored(row), nbytes)
            else:
                gone.append(number)
        for mark, index in self._indexes.items():
            stored, indexed = self.store.numbers(mark), set(index.entries())
            for number in indexed - stored:
                index.remove(number)
            missing = sorted(stored - indexed)
            for first in range(0, len(missing), RESTORED_AT_ONCE):
                at = missing[first : first + RESTORED_AT_ONCE]
                index.insert_many(at, [_probe(row) for row in self._rows(at)])
        self.remove(gone)

    def _rows(self, numbers: Sequence[int]) -> list[Row]:
        found = (self.store.read(number, writing=True) for number in numbers)
        return [row for row in found if row is not None]

    def _forget(self, rows: Sequence[Row]) -> None:
        """Let what is no longer stored leave its index."""
        for row in rows:
            number = row.entry.number
            index = self._indexes.get(row.entry.key.space.fingerprint)
            if index is not None and number in index:
                index.remove(number)
            self._used.pop(number, None)


def _probe(row: Row) -> Key:
    """Return the key under which an entry is looked up."""
    return replace(row.entry.key, scope_digest=row.digest)


def _stored(row: Row) -> Stored:
    """Return what a policy is told of an entry."""
    entry, key = row.entry, row.entry.key
    return Stored(entry.number, row.identity, 1, entry.cost, key.alignment, key.vector, row.digest)
