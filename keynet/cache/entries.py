"""The entries of a cache: what is stored, the index of their keys and the budget, in agreement.

The store is the truth. What the index holds beyond it is never served, and what either lacks is
mended when the folder is opened. Looking up only reads: it goes on where the disk is full.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from keynet.cache.entry import Entry
from keynet.cache.eviction import Eviction
from keynet.cache.index import CodeIndex, CodeIndexError, IndexFilesError
from keynet.cache.policies.policy import Stored
from keynet.cache.responses import decoded
from keynet.cache.spots import Spot
from keynet.cache.store import READ_AT_ONCE, CacheFilesError, EntryStore, Row
from keynet.types import Key, KeySpace

RESTORED_AT_ONCE = 10_000
# Neighbours looked at, one number after the other while none of them is alive. Beyond the last one
# so many that are dead lie nearer that looking on would cost more than the hit is worth.
LOOKED_AT = (READ_AT_ONCE, 32, 256)
HALF = 1e-3  # what two cosines are off by together, an index having vectors in half precision
TRIES = 3  # when an entry goes between search and reading; at the last one nothing can


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
        self._expires: dict[int, float] = {}  # of all that are held; infinity is never
        self._left: dict[int, CodeIndex] = {}  # gone, and still in an index that could not write
        self._indexes: dict[str, CodeIndex] = {}
        with ExitStack() as opened:
            self.store = EntryStore(folder, spaces)
            opened.callback(self.store.close)
            for space in spaces:
                mark = space.fingerprint
                index = CodeIndex(space, None if folder is None else folder / f"index-{mark}")
                opened.callback(index.close)
                self._indexes[mark] = index
            self.newest = 0.0  # time at which the last entry was stored
            # Not of an entry either whose storing was cut short after the index had it: after a
            # power cut the index might know the number by that entry's key.
            indexed = max(max(one.entries(), default=-1) for one in self._indexes.values())
            self._next = max(self.store.next_number(), indexed + 1)
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

    def nearest(self, probe: Key, now: float, radius: int | None) -> tuple[Entry, float] | None:
        """Return the entry nearest to a key and its similarity; of several, the first stored.

        The entry of the very same key goes before others whose cosine is rounded to 1. The entry
        comes without its response: see ``answered``.

        Args:
            probe: The key, with the digest under which it is looked up.
            now: Entries that expire by then are not alive.
            radius: Greatest Hamming distance; None is any.
        """
        there = self.near(probe, now, radius)
        ranked = [(*_cosine(entry.key, probe), -entry.number, entry) for entry in there]
        if not ranked:
            return None
        similarity, _, _, entry = max(ranked, key=lambda one: one[:3])
        return entry, similarity

    def near(self, probe: Key, now: float, radius: int | None) -> list[Entry]:
        """Return the living entry nearest to a key in its scope, and those that may be nearer.

        They come without their responses, and in any order.
        """
        for number in range(TRIES):
            with nullcontext() if number < TRIES - 1 else self.change:
                rows, all_there = self._near(probe, now, radius)
            if all_there:
                break
        return [row.entry for row in rows if row.digest == probe.scope_digest]

    def answered(self, entry: Entry) -> Entry | None:
        """Return an entry with its response; None if it is gone meanwhile."""
        found = self.store.response(entry.number)
        return None if found is None else replace(entry, response=decoded(*found))

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
        gone = self.store.rows(evicted if same is None else [*evicted, same])
        expires = row.entry.expires
        try:
            # Before it is stored: a lookup then finds it, or what it takes the place of.
            self._expires[number] = inf if expires is None else expires
            with self.store.transaction():
                self.store.remove(gone)
                self.store.add(row, kind, content)
                index.insert(number, _probe(row))
        except BaseException:
            for one in gone:
                self._eviction.insert(_stored(one), one.entry.nbytes)
            self._forget([row])
            raise
        self._eviction.insert(_stored(row), nbytes)
        self.newest = row.entry.created
        self._forget(gone)
        return evicted

    def remove(self, numbers: Sequence[int], spot: Spot | None = None) -> list[Row]:
        """Remove entries and keep the neighbourhood of a false hit; return those that were there.

        Raises:
            OSError: The disk is full or broken; nothing has changed.
        """
        rows = self.store.rows(numbers)
        if rows or spot is not None:
            with self.store.transaction():
                self.store.remove(rows)
                if spot is not None:
                    self.store.add_spot(spot)
            for row in rows:
                self._eviction.remove(row.entry.number)
            self._forget(rows)
        return rows

    def flush(self, learned: Mapping[str, Any]) -> None:
        """Return when all is on the disk, with what the cache has learned."""
        used = list(self._used.items())
        with self.store.durably():
            self.store.set_used([(when, number) for number, when in used])
            for name, value in learned.items():
                self.store.set_about(name, value)
        for number, when in used:
            if self._used.get(number) == when:
                self._used.pop(number, None)
        for index in self._indexes.values():
            index.flush()

    def close(self) -> None:
        """Let others open the folder, once who changes it has done so."""
        with ExitStack() as last:
            if self.store.mine:  # in a forked child it may be held for ever
                last.enter_context(self.change)
            self.store.refuse()
            last.callback(self.store.close)
            for index in self._indexes.values():
                last.callback(_close, index)

    def _near(self, probe: Key, now: float, radius: int | None) -> tuple[list[Row], bool]:
        """Return what ``near`` does, and whether nothing went between search and reading."""
        index, alive, gone = self._indexes[probe.space.fingerprint], list[int](), False
        for most in LOOKED_AT:
            try:
                found = index.search(probe, most, radius)
            except CodeIndexError:
                self.store.require_open()  # another thread has closed both meanwhile
                raise
            held = [one for one in found if one.entry not in self._left]
            gone = any(one.entry not in self._expires for one in held)
            living = [one for one in held if self._expires.get(one.entry, -inf) > now]
            alive = [one.entry for one in living if one.cosine > living[0].cosine - HALF]
            if alive or len(found) < most:
                break
        del alive[READ_AT_ONCE:]
        rows = self.store.read(alive) if alive else []
        return rows, not gone and len(rows) == len(alive)

    def _restore(self) -> None:
        """Take what the store holds, as far as the budget allows, and mend the indexes."""
        gone = []
        for row in self.store.by_use():
            number, nbytes = row.entry.number, row.entry.nbytes
            self.newest = max(self.newest, row.entry.created)
            if self.fits(nbytes):
                gone += self._eviction.make_room(_stored(row), nbytes)
                self._eviction.insert(_stored(row), nbytes)
                self._expires[number] = inf if row.entry.expires is None else row.entry.expires
            else:
                gone.append(number)
        for mark, index in self._indexes.items():
            stored, indexed = self.store.numbers(mark), set(index.entries())
            for number in indexed - stored:
                index.remove(number)
            missing = sorted(stored - indexed)
            for first in range(0, len(missing), RESTORED_AT_ONCE):
                at = missing[first : first + RESTORED_AT_ONCE]
                index.insert_many(at, [_probe(row) for row in self.store.rows(at)])
        self.remove(gone)

    def _forget(self, rows: Sequence[Row]) -> None:
        """Let what is not stored leave its index; what cannot, for want of space, leaves later."""
        for row in rows:
            number = row.entry.number
            index = self._indexes.get(row.entry.key.space.fingerprint)
            if index is not None and number in index:
                self._left[number] = index
            self._expires.pop(number, None)
            self._used.pop(number, None)
        with suppress(OSError):  # what was asked for is done; nothing of these is served any more
            for number, index in list(self._left.items()):
                index.remove(number)
                del self._left[number]


def _cosine(stored: Key, asked: Key) -> tuple[float, bool]:
    """Return the similarity of two keys, 1 for equal ones whatever rounding does, and if they are.

    Keys that are not equal may have a similarity of 1 too, by rounding.
    """
    if np.array_equal(stored.vector, asked.vector):
        return 1.0, True
    return min(1.0, float(stored.vector @ asked.vector)), False


def _close(index: CodeIndex) -> None:
    try:
        index.close()
    except IndexFilesError as error:
        raise CacheFilesError(str(error)) from error


def _probe(row: Row) -> Key:
    """Return the key under which an entry is looked up."""
    return replace(row.entry.key, scope_digest=row.digest)


def _stored(row: Row) -> Stored:
    """Return what a policy is told of an entry."""
    entry, key = row.entry, row.entry.key
    scope = f"{key.space.fingerprint}:{row.digest}"
    return Stored(entry.number, row.identity, 1, entry.cost, key.alignment, key.vector, scope)
