"""Entries on disk, in SQLite: what a cache is restored from.

In one folder: ``entries.sqlite`` with its ``-wal`` and ``-shm``, ``lock``, and beside them
``index-<key space>/``, which is derived: what the two differ in is mended from the entries when the
folder is opened, so that an index that was removed is built again.

* **Acknowledged** is what is committed to the write-ahead log: it survives ``kill -9``. What
  ``durably`` has returned for survives a power cut too, and all before it.
* **A full disk** fails the call, which then has changed nothing.
"""

from __future__ import annotations

import errno
import json
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keynet.cache.checkpoints import Checkpoints
from keynet.cache.entry import CacheError, Entry
from keynet.cache.index_lock import FolderLock
from keynet.cache.index_log import IndexFilesError
from keynet.cache.spots import MOST, Spot
from keynet.cache.versions import Stamp
from keynet.types import Key, KeySpace

FORMAT = 1
FILE = "entries.sqlite"
OWN = re.compile(rf"{re.escape(FILE)}(-wal|-shm|-journal)?|index-[0-9a-f]+|lock")
RESTORE = "restore the folder from a copy, or remove it to start empty"
SCHEMA = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE versions (
  grain TEXT, name TEXT, version INTEGER NOT NULL, PRIMARY KEY (grain, name)
) WITHOUT ROWID;
CREATE TABLE stamps (
  grain TEXT, name TEXT, version INTEGER, number INTEGER, PRIMARY KEY (grain, name, version, number)
) WITHOUT ROWID;
CREATE TABLE entries (
  number INTEGER PRIMARY KEY AUTOINCREMENT, identity BLOB NOT NULL UNIQUE, space TEXT NOT NULL,
  digest TEXT NOT NULL, scope TEXT NOT NULL, modalities TEXT NOT NULL, alignment REAL,
  cost REAL NOT NULL, nbytes INTEGER NOT NULL, created REAL NOT NULL, expires REAL,
  used REAL NOT NULL, stamps TEXT NOT NULL, code BLOB NOT NULL, vector BLOB NOT NULL,
  kind INTEGER NOT NULL, response BLOB NOT NULL
);
CREATE INDEX expiring ON entries (expires) WHERE expires IS NOT NULL;
CREATE TABLE spots (
  number INTEGER PRIMARY KEY AUTOINCREMENT, place TEXT NOT NULL, vector BLOB NOT NULL,
  similarity REAL NOT NULL
);
"""
READ_AT_ONCE = 8
COLUMNS = (
    "number, space, identity, digest, scope, modalities, alignment, cost, nbytes, created, "
    "expires, stamps, code, vector"
)
SELECT_SOME = f"SELECT {COLUMNS} FROM entries WHERE number IN ({', '.join('?' * READ_AT_ONCE)})"
# Another text than a reader's: in memory both use one connection, which keeps a statement for each
# text, and a thread could take the values that another has bound to it.
SELECT_ONE = f"SELECT {COLUMNS} FROM entries WHERE number = ?"
SELECT_ALL = f"SELECT {COLUMNS} FROM entries ORDER BY used, number"
INSERT = (
    "INSERT INTO entries (number, identity, space, digest, scope, modalities, alignment, cost, "
    "nbytes, created, expires, used, stamps, code, vector, kind, response) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class CacheFilesError(CacheError):
    """A folder of a cache that cannot be opened, or trusted; the message says what to do."""


class Row(NamedTuple):
    """An entry as it is stored.

    Args:
        entry: The entry, without its response where it was read: see ``EntryStore.response``.
        digest: Under which it is looked up; see ``versioned_digest``.
        identity: Equal for requests of the same key and digest.
    """

    entry: Entry
    digest: str
    identity: bytes


class EntryStore:
    """The entries of a cache. Calls that change it are made by one thread at a time.

    Args:
        folder: One that is there, whose lock it takes; None keeps all in memory.
        spaces: Key spaces that are served. Of another, whose entries may be there, only the
            fingerprint is known.

    Raises:
        CacheFilesError: The folder is in use, damaged, of a newer format or of something else.
        OSError: The folder cannot be read or written.
    """

    def __init__(self, folder: Path | None, spaces: Sequence[KeySpace]) -> None:
        self._folder = folder
        self._spaces = {space.fingerprint: space for space in spaces}
        self._lock: FolderLock | None = None
        self._checkpoints: Checkpoints | None = None
        self._closed = False
        path = ":memory:" if folder is None else str(folder / FILE)
        if folder is not None:
            try:
                self._lock = FolderLock(folder, "cache", _require_own)
            except IndexFilesError as error:
                raise CacheFilesError(str(error)) from error
        try:
            with self._explained("opened"):
                self._writer = _connect(path)
                self._prepare()
                # Of its own, so that nobody who reads waits for a commit.
                self._reader = self._writer if folder is None else _connect(path)
            self._checkpoints = None if folder is None else Checkpoints(self._writer, path)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        self._reading = threading.Lock()

    @property
    def mine(self) -> bool:
        """Whether this process opened the folder; a forked child did not."""
        return self._lock is None or self._lock.mine

    def require_open(self) -> None:
        """Raise CacheError when it is closed, CacheFilesError in a forked child."""
        if self._closed:
            raise CacheError("cache is closed; open it again")
        if self._lock is not None and not self._lock.mine:
            raise CacheFilesError(
                f"{self._folder} was opened before a fork, in process {self._lock.owner}; "
                "close the cache there, or open one here on another folder"
            )

    @contextmanager
    def durably(self) -> Iterator[None]:
        """Make all changes inside, or none; then they are on the disk, and all before them.

        Raises:
            OSError: The disk is full or broken.
            CacheFilesError: The file is damaged, or the folder was removed meanwhile.
        """
        if self._lock is not None:
            try:
                self._lock.require_there()
            except IndexFilesError as error:
                raise CacheFilesError(str(error)) from error
        # Then a commit syncs the log; a checkpoint would not while others read an older state.
        self._writer.execute("PRAGMA synchronous=FULL")
        try:
            with self.transaction():
                yield
        finally:
            self._writer.execute("PRAGMA synchronous=NORMAL")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes inside, or none.

        Raises:
            OSError: The disk is full or broken.
            CacheFilesError: The file is damaged.
        """
        with self._explained("written"):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._writer.execute("COMMIT")
                if self._checkpoints is not None:
                    self._checkpoints.committed()
            except BaseException:
                if self._writer.in_transaction:  # a full disk may have rolled it back already
                    self._writer.execute("ROLLBACK")
                raise

    def add(self, row: Row, kind: int, content: bytes) -> None:
        """Store an entry, inside a transaction; its response comes as ``encoded`` made it."""
        entry, key = row.entry, row.entry.key
        values = (
            entry.number, row.identity, key.space.fingerprint, row.digest, key.scope_digest,
            entry.modalities, key.alignment, entry.cost, entry.nbytes, entry.created, entry.expires,
            entry.created, json.dumps(entry.stamps), key.code.tobytes(), key.vector.tobytes(), kind,
            content,
        )  # fmt: skip
        self._writer.execute(INSERT, values)
        self._writer.executemany(
            "INSERT INTO stamps VALUES (?, ?, ?, ?)",
            [(*stamp, entry.number) for stamp in entry.stamps],
        )

    def remove(self, rows: Sequence[Row]) -> None:
        """Remove entries, inside a transaction."""
        for row in rows:
            number = row.entry.number
            self._writer.execute("DELETE FROM entries WHERE number = ?", (number,))
            self._writer.executemany(
                "DELETE FROM stamps WHERE grain = ? AND name = ? AND version = ? AND number = ?",
                [(*stamp, number) for stamp in row.entry.stamps],
            )

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Return those of ``READ_AT_ONCE`` entries or fewer that are there, at one moment."""
        padded = [*numbers, *[-1] * (READ_AT_ONCE - len(numbers))]
        with self._explained("read"), self._reading:
            found = self._reader.execute(SELECT_SOME, padded).fetchall()
        return [self._row(one) for one in found]

    def response(self, number: int) -> tuple[int, bytes] | None:
        """Return the kind of a response and its bytes; None if the entry is not there."""
        with self._explained("read"), self._reading:
            found: tuple[int, bytes] | None = self._reader.execute(
                "SELECT kind, response FROM entries WHERE number = ?", (number,)
            ).fetchone()
        return found

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        """Return entries as the one thread that writes sees them; those that are there."""
        with self._explained("read"):
            found = [self._writer.execute(SELECT_ONE, (one,)).fetchone() for one in numbers]
        return [self._row(one) for one in found if one is not None]

    def with_identity(self, identity: bytes) -> int | None:
        """Return the number of the entry of an identity."""
        found = self._asked("SELECT number FROM entries WHERE identity = ?", (identity,))
        return found[0][0] if found else None

    def expired(self, now: float, most: int) -> list[int]:
        """Return numbers of entries whose time is over."""
        found = self._asked("SELECT number FROM entries WHERE expires <= ? LIMIT ?", (now, most))
        return [number for (number,) in found]

    def outdated(self, stamp: Stamp, most: int) -> list[int]:
        """Return numbers of entries of a grain that are older than a version."""
        found = self._asked(
            "SELECT number FROM stamps WHERE grain = ? AND name = ? AND version < ? LIMIT ?",
            (*stamp, most),
        )
        return [number for (number,) in found]

    def by_use(self) -> Iterator[Row]:
        """Return all entries without their responses, the one used longest ago first."""
        with self._explained("read"):
            for found in self._writer.execute(SELECT_ALL):
                yield self._row(found)

    def numbers(self, fingerprint: str) -> set[int]:
        """Return the numbers of all entries of a key space."""
        found = self._asked("SELECT number FROM entries WHERE space = ?", (fingerprint,))
        return {number for (number,) in found}

    def next_number(self) -> int:
        """Return a number that no entry ever had."""
        found = self._asked("SELECT seq FROM sqlite_sequence WHERE name = 'entries'")
        return int(found[0][0]) + 1 if found else 0

    def versions(self) -> dict[tuple[str, str], int]:
        """Return the versions that were raised."""
        found = self._asked("SELECT grain, name, version FROM versions")
        return {(grain, name): version for grain, name, version in found}

    def set_version(self, stamp: Stamp) -> None:
        """Keep a version, inside a transaction."""
        self._writer.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", stamp)

    def set_used(self, used: Sequence[tuple[float, int]]) -> None:
        """Keep when entries were used last, inside a transaction; pairs of time and number."""
        self._writer.executemany("UPDATE entries SET used = ? WHERE number = ?", used)

    def about(self, name: str) -> Any:
        """Return what ``set_about`` kept; None without it."""
        found = self._asked("SELECT value FROM about WHERE name = ?", (name,))
        return json.loads(found[0][0]) if found else None

    def set_about(self, name: str, value: Any) -> None:
        """Keep something by its name, inside a transaction."""
        content = json.dumps(value, allow_nan=False)
        self._writer.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (name, content))

    def spots(self) -> list[Spot]:
        """Return the neighbourhoods of false hits, the oldest first."""
        found = self._asked("SELECT place, vector, similarity FROM spots ORDER BY number")
        return [Spot(place, np.frombuffer(vector, np.float32), at) for place, vector, at in found]

    def add_spot(self, spot: Spot) -> None:
        """Keep a neighbourhood, inside a transaction; beyond ``MOST`` the oldest goes."""
        self._writer.execute(
            "INSERT INTO spots (place, vector, similarity) VALUES (?, ?, ?)",
            (spot.place, spot.vector.tobytes(), spot.similarity),
        )
        self._writer.execute(
            "DELETE FROM spots WHERE number <= (SELECT max(number) FROM spots) - ?", (MOST,)
        )

    def refuse(self) -> None:
        """Let ``require_open`` say from now on that the cache is closed."""
        self._closed = True

    def close(self) -> None:
        """Let others open the folder; a forked child leaves it to its parent."""
        self.refuse()
        if self.mine:
            if self._checkpoints is not None:
                self._checkpoints.close()
            with self._reading:
                self._reader.close()
            self._writer.close()
        if self._lock is not None:
            self._lock.release()

    def _prepare(self) -> None:
        if not self._asked("SELECT name FROM sqlite_master LIMIT 1"):
            with self.transaction():
                for statement in SCHEMA.split(";"):
                    self._writer.execute(statement)
                self.set_about("format", FORMAT)
        tables = self._asked("SELECT name FROM sqlite_master WHERE name IN ('about', 'entries')")
        if len(tables) < 2:
            raise CacheFilesError(f"{self._folder}/{FILE} is not of a cache; choose another folder")
        found = self.about("format")
        if found != FORMAT:
            raise CacheFilesError(
                f"{self._folder}/{FILE} has format {found}, this version reads {FORMAT}; "
                "use the version that wrote it, or another folder"
            )

    def _asked(self, question: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the answer as the one thread that writes sees it."""
        with self._explained("read"):
            return self._writer.execute(question, values).fetchall()

    def _row(self, found: Sequence[Any]) -> Row:
        (
            number, mark, identity, digest, scope, modalities, alignment, cost, nbytes, created,
            expires, stamps, code, vector,
        ) = found  # fmt: skip
        space = self._spaces.get(mark) or KeySpace("", 0, 0, 0, mark)
        arrays = np.frombuffer(vector, np.float32), np.frombuffer(code, np.uint8)
        entry = Entry(
            number, Key(space, *arrays, alignment, scope), modalities, None, cost, nbytes, created,
            expires, tuple(Stamp(*stamp) for stamp in json.loads(stamps)),
        )  # fmt: skip
        return Row(entry, digest, identity)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.ProgrammingError as error:
            self.require_open()  # another thread has closed it meanwhile
            raise error
        except sqlite3.DatabaseError as error:
            name, said = f"{self._folder}/{FILE}", str(error)
            if "full" in said:
                raise OSError(
                    errno.ENOSPC, f"cache cannot be {what} ({said}); free some space", name
                ) from error
            if isinstance(error, sqlite3.OperationalError) and "malformed" not in said:
                raise OSError(
                    errno.EIO, f"cache cannot be {what} ({said}); check the disk", name
                ) from error
            raise CacheFilesError(f"{name} is damaged ({said}); {RESTORE}") from error


def _connect(path: str) -> sqlite3.Connection:
    """Return a connection in which each change is committed on its own or in a transaction."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _require_own(folder: Path) -> None:
    """Raise IndexFilesError unless the folder is empty, or a cache's."""
    found = [path.name for path in folder.iterdir()]
    other = [name for name in found if not OWN.fullmatch(name)]
    if FILE not in found and (other or set(found) - {"lock"}):
        name = min(other or found)
        raise IndexFilesError(
            f"{folder} holds {name} and no cache; choose an empty folder, or a new one"
        )
