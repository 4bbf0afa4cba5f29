"""The index of a cache: keys of one key space, found by code and ranked by cosine.

Codes are searched whole while a scope holds few, and in inverted lists when it holds many: see
``scope_codes``. With a folder the index is kept on disk and restored: see ``index_files``.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from keynet.cache.index_files import IndexFiles
from keynet.cache.index_log import REMOVE, SET, IndexFilesError
from keynet.cache.key_rows import (
    CodeIndexError,
    KeyRows,
    check_digests,
    check_space,
    entry_number,
    entry_numbers,
    key_rows,
    whole_number,
)
from keynet.cache.neighbour import Neighbour, ranked
from keynet.cache.scope_codes import ScopeCodes
from keynet.types import Key, KeySpace

__all__ = ["CodeIndex", "CodeIndexError", "IndexFilesError", "Neighbour"]

QUERIES_AT_ONCE = 64  # their candidates' vectors are copied together,
CANDIDATES_AT_ONCE = 1 << 16  # of so many at most, unless one query has more
SLOT_BITS = 40  # a place is the number of a scope and, in its lower bits, a slot
OBJECTS = 64  # bytes of the two integers that are an entry and its place

Longs = NDArray[np.int64]


class _Scope(NamedTuple):
    number: int
    digest: str
    codes: ScopeCodes


class CodeIndex:
    """Entries by key; any number of threads may search and change it.

    What a search finds was there at one moment of the search, in each scope; it misses nothing that
    was there throughout, but where a scope is so large that its search is approximate. Calls that
    change the index take turns; each does all that it was asked for, or raises and does nothing.

    Args:
        space: Key space of all keys.
        folder: Where to keep it, made if missing; what is there is restored. None: in memory alone.

    Raises:
        CodeIndexError: The key space has widths that codes and vectors cannot have.
        IndexFilesError: The folder is in use, damaged, of a newer format, of another key space or
            of something else than an index.
        OSError: The folder cannot be made, read or written.
    """

    def __init__(self, space: KeySpace, folder: str | Path | None = None) -> None:
        check_space(space)
        if folder == "":
            raise IndexFilesError('folder is ""; name one, or give None to keep all in memory')
        self.space = space
        self._write_lock = threading.Lock()
        self._scopes: dict[str, _Scope] = {}
        self._numbered: dict[int, _Scope] = {}
        self._next_number = 0
        self._places: dict[int, int] = {}
        self._closed = False
        self._files: IndexFiles | None = None
        if folder is not None:
            self._files = IndexFiles(Path(folder), space, self._write_lock)
            try:
                self._restore(self._files)
            except BaseException:
                self._files.close()
                raise

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, entry: object) -> bool:
        return entry in self._places

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def insert(self, entry: int, key: Key) -> None:
        """Add one entry; see ``insert_many``."""
        self.insert_many([entry], [key])

    def insert_many(self, entries: Sequence[int], keys: Sequence[Key]) -> None:
        """Add entries; many at once are many times faster than one by one.

        Args:
            entries: Numbers from 0 on that are not in the index.
            keys: As many keys.

        Raises:
            ValueError: A key is of another key space.
            CodeIndexError: A key or a number cannot be taken, or is there already.
            OSError: The disk is full or broken.
        """
        ids, rows = entry_numbers(entries, keys), key_rows(self.space, keys)
        with self._writing():
            twice = next((i for i in ids if i in self._places), None)
            if twice is not None:
                raise CodeIndexError(f"entry {twice} is in the index; replace it, or remove it")
            if len(set(ids)) < len(ids):
                twice = Counter(ids).most_common(1)[0][0]
                raise CodeIndexError(f"entry {twice} is given twice; give each its own number")
            scopes = [(self._scope(digest), at) for digest, at in _grouped(rows.scopes)]
            for scope, at in scopes:
                scope.codes.reserve(len(at))
            numbers = np.array(ids, np.int64)
            self._write(SET, ids, rows, len(self._places) + len(ids))
            for scope, at in scopes:
                self._extend(scope, numbers[at], rows.codes[at], rows.vectors[at])
            for scope, _ in scopes:
                scope.codes.grown()

    def replace(self, entry: int, key: Key) -> None:
        """Give an entry another key, of any scope.

        Raises:
            ValueError: The key is of another key space.
            CodeIndexError: The key cannot be taken, or the entry is not there.
            OSError: The disk is full or broken.
        """
        number, rows = entry_number(entry), key_rows(self.space, [key])
        with self._writing():
            scope, slot = self._place(number, "replace")
            target = self._scope(key.scope_digest)
            if target is not scope:
                target.codes.reserve(1)
            self._write(SET, [number], rows, len(self._places))
            if target is scope:
                scope.codes.replace(slot, rows.codes[0], rows.vectors[0])
            else:
                self._drop(number, scope, slot)
                self._extend(target, np.array([number]), rows.codes, rows.vectors)
                target.codes.grown()

    def remove(self, entry: int) -> None:
        """Remove an entry.

        Raises:
            CodeIndexError: It is not there.
            OSError: The disk is full or broken.
        """
        number = entry_number(entry)
        with self._writing():
            scope, slot = self._place(number, "remove")
            self._write(REMOVE, [number], None, len(self._places) - 1)
            self._drop(number, scope, slot)

    def search(
        self,
        key: Key,
        k: int = 1,
        radius: int | None = None,
        candidates: int = 32,
        scopes: Iterable[str] | None = None,
    ) -> list[Neighbour]:
        """Return the k nearest entries of one key; see ``search_many``."""
        return self.search_many([key], k, radius, candidates, scopes)[0]

    def search_many(
        self,
        keys: Sequence[Key],
        k: int = 1,
        radius: int | None = None,
        candidates: int = 32,
        scopes: Iterable[str] | None = None,
    ) -> list[list[Neighbour]]:
        """Return the k nearest entries of each key, by cosine, then by entry; fewer if there are.

        Those with the nearest codes are the candidates; the cosine ranks them.

        Args:
            keys: What to look for.
            k: How many to return.
            radius: Greatest Hamming distance, 0 to K; None is any.
            candidates: How many to rank, k of them at least. Of several at the same distance, any.
            scopes: Digests of the scopes to search; None is the key's own.

        Raises:
            ValueError: A key is of another key space.
            CodeIndexError: A key or a setting cannot be taken.
        """
        k, candidates = whole_number("k", k, 1), whole_number("candidates", candidates, 1)
        bits = self.space.bits
        within = bits if radius is None else whole_number("radius", radius, 0, bits)
        rows, num_candidates = key_rows(self.space, keys), max(k, candidates)
        self._require_open()
        found: list[list[Neighbour]] = [[] for _ in keys]
        for digests, asking in _asked(rows.scopes, scopes):
            there = [s.codes for digest in digests if (s := self._scopes.get(digest)) is not None]
            if not there:
                continue
            most = sum(min(num_candidates, len(codes)) for codes in there)
            at_once = max(1, min(QUERIES_AT_ONCE, CANDIDATES_AT_ONCE // max(1, most)))
            for first in range(0, len(asking), at_once):
                at = asking[first : first + at_once]
                parts = [codes.nearest(rows.codes[at], num_candidates, within) for codes in there]
                for number, row in enumerate(at):
                    mine = [part.at(number) for part in parts]
                    found[row] = ranked(rows.vectors[row], mine, k, within, num_candidates)
        return found

    def entries(self) -> list[int]:
        """Return all entries."""
        with self._write_lock:
            return list(self._places)

    def approximate(self, scope: str) -> bool:
        """Return whether a search of the scope may miss what is there, since it is large."""
        there = self._scopes.get(scope)
        return there is not None and there.codes.approximate

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory, by estimate."""
        codes = sum(scope.codes.nbytes for scope in list(self._scopes.values()))
        tables = sum(map(sys.getsizeof, (self._scopes, self._numbered, self._places)))
        return codes + tables + OBJECTS * len(self._places)

    def settle(self) -> None:
        """Wait for what runs beside: building lists, compacting the files."""
        for scope in list(self._scopes.values()):
            scope.codes.join()
        if self._files is not None:
            self._files.join()

    def flush(self) -> None:
        """Return when all that was done is on the disk, and survives a power cut.

        Raises:
            IndexFilesError: The folder was removed meanwhile, or this process is a forked child.
            OSError: The disk is broken; the index can be searched, and no longer be changed.
        """
        with self._writing():
            if self._files is not None:
                self._files.flush()

    def close(self) -> None:
        """Flush, end what runs beside, let others open the folder; a second call does nothing.

        A forked child may search, and not change: it closes without touching the files.

        Raises:
            IndexFilesError: The folder was removed meanwhile.
            OSError: The disk is broken; the index is closed nevertheless.
        """
        if self._files is not None and not self._files.mine:  # whose lock may be held for ever
            self._closed = True
            self._files.close()
            return
        with self._write_lock:
            if self._closed:
                return
            self._closed = True
            scopes = list(self._scopes.values())
        for scope in scopes:
            scope.codes.stop()
        for scope in scopes:
            scope.codes.join()
        if self._files is not None:
            try:
                with self._write_lock:
                    self._files.flush()
            finally:
                self._files.close()

    def _restore(self, files: IndexFiles) -> None:
        for digest, count, parts in files.restore():
            scope = self._scope(digest)
            scope.codes.reserve(count)
            for part in parts:
                self._extend(scope, part["entry"], part["code"], part["vector"])
            scope.codes.grown()

    def _scope(self, digest: str) -> _Scope:
        """Return a scope that is there, or a new one, which ``_extend`` makes known."""
        there = self._scopes.get(digest)
        if there is None:
            codes = ScopeCodes(self.space.bits, self.space.dim, self._write_lock)
            there = _Scope(self._next_number, digest, codes)
            self._next_number += 1
        return there

    def _place(self, entry: int, what: str) -> tuple[_Scope, int]:
        place = self._places.get(entry)
        if place is None:
            raise CodeIndexError(f"entry {entry} is not in the index; {what} what was inserted")
        return self._numbered[place >> SLOT_BITS], place & ((1 << SLOT_BITS) - 1)

    def _extend(
        self, scope: _Scope, ids: Longs, codes: NDArray[np.uint8], vectors: NDArray[Any]
    ) -> None:
        slot = scope.codes.extend(ids, codes, vectors)
        self._scopes[scope.digest] = self._numbered[scope.number] = scope
        first = (scope.number << SLOT_BITS) + slot
        self._places.update(zip(ids.tolist(), range(first, first + len(ids)), strict=True))

    def _drop(self, entry: int, scope: _Scope, slot: int) -> None:
        moved = scope.codes.remove(slot)
        place = self._places.pop(entry)
        if moved is not None:
            self._places[moved] = place
        if not len(scope.codes):
            scope.codes.stop()
            del self._scopes[scope.digest], self._numbered[scope.number]

    def _write(self, what: int, ids: Sequence[int], rows: KeyRows | None, alive: int) -> None:
        if self._files is None or not ids:
            return
        records = self._files.new(len(ids))
        records["entry"], records["operation"] = ids, what
        if rows is not None:
            digests = np.frombuffer(bytes.fromhex("".join(rows.scopes)), np.uint8)
            records["scope"] = digests.reshape(len(ids), -1)
            records["code"], records["vector"] = rows.codes, rows.vectors
        self._files.append(records, alive)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._files is not None:
            self._files.require_mine()  # before the lock, which a fork may have left held
        with self._write_lock:
            self._require_open()
            yield

    def _require_open(self) -> None:
        if self._closed:
            raise CodeIndexError("index is closed; open it again")


def _asked(own: Sequence[str], scopes: Iterable[str] | None) -> list[tuple[list[str], list[int]]]:
    """Return digests of scopes, and the rows that ask for them."""
    if scopes is not None:
        return [(check_digests(scopes), list(range(len(own))))]
    return [([digest], at) for digest, at in _grouped(own)]


def _grouped(digests: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    rows: dict[str, list[int]] = {}
    for at, digest in enumerate(digests):
        rows.setdefault(digest, []).append(at)
    yield from rows.items()
