"""The folder of an index: a journal of what was done, and snapshots that it is compacted to.

``<n>.journal`` continues ``<n>.snapshot``, which holds what the logs before it came to; 0 has no
snapshot. The format of both is that of ``index_log``. ``lock`` keeps a second writer out: see
``index_lock``.

* **Acknowledged** is what the operating system has taken: an index restored after its process was
  killed holds every call that returned, of the call under way a part or nothing. What ``flush``
  has returned for, and ``close``, is on the disk, and there after a power cut too.
* **A last record half written** is cut off, kept as ``<n>.journal.cut``, with a line in the log. So
  are zeros, which a power cut leaves. A whole record that is damaged is no interrupted write:
  opening refuses, and says how to keep what stands before it.
* **A journal cut between two records** looks whole, if it is the last: what a power cut takes of
  the end that was not flushed is gone without a line. The ones before have their length told by
  the next, and are refused.
* **A fork** leaves the folder to the process that opened it; a child may search, and not change.
* **Compaction** runs beside the index once the logs hold twice as many records as are alive. The
  generation before stays: if a snapshot is damaged, the one before and both journals give all of
  what it held, and a line in the log says so. The disk holds at most about five times the entries.
* **A full disk** fails the call, which then has changed nothing, neither in memory nor on disk.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from keynet.cache.index_disk import bytes_from, explained, sync_folder, write_all
from keynet.cache.index_lock import LOGS, OWN, FolderLock
from keynet.cache.index_log import (
    HEADER,
    RESTORE,
    DamagedError,
    IndexFilesError,
    Log,
    Records,
    any_sound,
    first_damaged,
    header,
    last_settings,
    raw_bytes,
    read_log,
    record_type,
    seal,
    take,
)
from keynet.types import KeySpace

COMPACT_FROM = 4096  # dead records in the logs, beside as many as are alive, before a compaction
AT_ONCE = 1 << 14  # records read or written at a time
log = logging.getLogger(__name__)


class IndexFiles:
    """Journal and snapshots of one index, which is their only writer.

    Args:
        folder: Made where it is missing.
        space: Key space of the index.
        write_lock: The lock that the index's writers hold while they call ``append``.

    Raises:
        IndexFilesError: The folder is in use, damaged, of a newer format or of another key space.
        OSError: The folder cannot be made, read or written.
    """

    def __init__(self, folder: Path, space: KeySpace, write_lock: threading.Lock) -> None:
        self.folder, self._space, self._write_lock = folder, space, write_lock
        self._kind = record_type(space)
        self._broken = ""  # why nothing may be written any more
        self._compaction: threading.Thread | None = None
        self._stopped = threading.Event()
        self._journal, self._number, self._base = -1, 0, 0
        self._held = 0  # records in snapshot and journals
        self._compact_at = 0
        self._restored: list[Records] = []
        self._origin = secrets.token_hex(8)  # unless there are logs of another
        with explained(folder, "opened"):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(folder)
        try:
            with explained(folder, "opened"):
                self._open()
        except BaseException:
            self.close()
            raise

    @property
    def mine(self) -> bool:
        """Whether this process opened the folder; a forked child did not, and may only close."""
        return self._lock.mine

    def require_mine(self) -> None:
        """Raise IndexFilesError in a forked child."""
        self._lock.require_mine()

    def restore(self) -> Iterator[tuple[str, int, Iterator[Records]]]:
        """Yield each scope's digest, its number of entries, and their records in parts."""
        records, self._restored = self._restored, []
        places = last_settings(records)
        scopes = np.concatenate([part["scope"] for part in records]).view("<u8")[places]  # [n, 2]
        if len(places) and (scopes != scopes[0]).any():
            order = np.lexsort((scopes[:, 1], scopes[:, 0]))
            places, scopes = places[order], scopes[order]
        starts = np.flatnonzero((np.diff(scopes, axis=0) != 0).any(1)) + 1
        for first, end in pairwise([0, *starts.tolist(), len(places)] if len(places) else []):
            yield scopes[first].tobytes().hex(), end - first, _parts(records, places[first:end])

    def new(self, count: int) -> Records:
        """Return empty records, to fill and append."""
        return np.zeros(count, self._kind)

    def append(self, records: Records, alive: int) -> None:
        """Write records to the journal, all or none; the caller holds the lock of writers.

        Args:
            records: From ``new``, filled but for their CRC.
            alive: Entries of the index once they are written.

        Raises:
            IndexFilesError: This process is a forked child.
            OSError: The disk is full or broken.
        """
        self._check()
        seal(records)
        end = os.fstat(self._journal).st_size
        try:
            with explained(self.folder, "written"):
                write_all(self._journal, raw_bytes(records))
        except BaseException:  # a KeyboardInterrupt too may leave half a record
            self._broken = "a half-written record could not be cut off"
            with suppress(OSError):
                os.ftruncate(self._journal, end)
                self._broken = ""
            raise
        self._held += len(records)
        if self._held > max(self._compact_at, 2 * alive + COMPACT_FROM):
            self._compact_at = self._held + alive + COMPACT_FROM  # should this one fail
            self._start_compaction()

    def flush(self) -> None:
        """Return when all that was appended is on the disk; the caller holds the lock of writers.

        Raises:
            IndexFilesError: The folder was removed, or this process is a forked child.
            OSError: The disk is broken; nothing can be written any more.
        """
        self._check()
        self._require_there()
        self._sync()

    def join(self) -> None:
        """Wait for a compaction that is on; the caller does not hold the lock of writers."""
        if self._compaction is not None:
            self._compaction.join()

    def close(self) -> None:
        """End a compaction, close the files, let others open the folder; flushes nothing.

        The caller does not hold the lock of writers.
        """
        self._stopped.set()
        self.join()
        if self._journal >= 0:
            os.close(self._journal)
        self._journal = -1
        self._lock.release()

    def _check(self) -> None:
        self._lock.require_mine()
        if self._broken:
            raise OSError(
                errno.EIO,
                f"index is no longer written: {self._broken}; close it and open it again",
                str(self.folder),
            )

    def _require_there(self) -> None:
        try:
            self._lock.require_there()
        except IndexFilesError:
            self._broken = "its folder was removed or replaced"
            raise

    def _sync(self) -> None:
        try:
            with explained(self.folder, "flushed"):
                os.fsync(self._journal)
        except OSError as error:
            # The kernel forgets which pages it failed to write: a later fsync would succeed.
            self._broken = f"an earlier flush failed ({os.strerror(error.errno or 0)})"
            raise

    def _open(self) -> None:
        """Read the logs, cut off what is half written, and open the journal."""
        for left in list(self.folder.iterdir()):
            if left.suffix == ".tmp" and OWN.fullmatch(left.name):
                left.unlink()
        journals, snapshots = self._numbers("journal"), self._numbers("snapshot")
        if not journals and not snapshots:
            self._create(self._path(0, "journal"), [header(self._space, self._origin, 0)])
            journals = [0]
        newest = max(snapshots, default=0)
        for number in range(newest, max([newest, *journals]) + 1):
            if number not in journals:
                raise IndexFilesError(f"{self.folder} lacks {number}.journal{RESTORE}")
        self._origin = read_log(self._path(journals[-1], "journal"), self._space).origin
        self._base, base = self._sound_base(snapshots, journals)
        self._number = journals[-1]
        read = [self._read_journal(number) for number in range(self._base, self._number + 1)]
        self._restored = read if base is None else [base, *read]
        last = self._path(self._number, "journal")
        self._journal = os.open(last, os.O_WRONLY | os.O_APPEND)
        self._held = sum(map(len, self._restored))
        if self._base != newest:  # a damaged one, to be written anew
            self._start_compaction()

    def _sound_base(self, snapshots: list[int], journals: list[int]) -> tuple[int, Records | None]:
        """Return the newest snapshot that is sound and whose journals are there, or 0 and None."""
        damage: list[str] = []
        for number in reversed(sorted({0, *snapshots})):
            if not set(range(number, journals[-1] + 1)) <= set(journals):
                break
            found = None
            if number in snapshots:
                path = self._path(number, "snapshot")
                try:
                    found = self._read(number, "snapshot").records
                    if (record := first_damaged(found)) is not None:
                        raise DamagedError(f"{path} is damaged at record {record}")
                except DamagedError as error:
                    damage.append(str(error).removesuffix(RESTORE))
                    continue
            for line in damage:
                log.warning("%s: restored from the snapshot before; nothing is lost", line)
            return number, found
        raise IndexFilesError(f"{damage[0]}, and no older snapshot is whole{RESTORE}")

    def _read_journal(self, number: int) -> Records:
        """Return a journal's sound records, or refuse what is no interrupted write."""
        path, size = self._path(number, "journal"), self._kind.itemsize
        found = self._read(number, "journal")
        bad = first_damaged(found.records)
        kept = len(found.records) if bad is None else bad
        end = path.stat().st_size - found.loose - (len(found.records) - kept) * size
        if bad is not None and (
            any_sound(found.records[bad:]) or bytes_from(path, end + size - 4).any()
        ):
            behind = "sound behind it" if any_sound(found.records[bad:]) else "as long as written"
            raise DamagedError(
                f"{path} is damaged at record {bad} and {behind}, which is no interrupted "
                f"write; restore the folder from a copy, or keep the {bad} records before the "
                f"damage and lose the others: truncate -s {end} {quote(str(path))}"
            )
        lost = path.stat().st_size - end
        # It may have grown since, where the disk refused the one after it at first.
        if number != self._number and (
            lost or kept < (self._read(number + 1, "journal").before or 0)
        ):
            raise DamagedError(
                f"{path} lacks its end, which the journals after it build on{RESTORE}"
            )
        if lost:
            cut = path.with_name(f"{path.name}.cut")
            with cut.open("ab") as file:
                file.write(bytes_from(path, end).data)
                os.fsync(file.fileno())
            log.warning(
                "%s: cut off %d bytes of a record that was half written, kept in %s",
                path,
                lost,
                cut.name,
            )
            os.truncate(path, end)
        return found.records[:kept]

    def _start_compaction(self) -> None:
        """Compact beside the index, unless that is going on; a failure is logged."""
        if self._compaction is not None and self._compaction.is_alive():
            return
        # A daemon, so that it delays no exit: to end it then is to kill it, which does no harm.
        compaction = threading.Thread(target=self._compacted, name="keynet-compaction", daemon=True)
        try:
            compaction.start()
        except (RuntimeError, MemoryError) as error:  # no thread
            self._log_failure(error)
        else:
            self._compaction = compaction

    def _compacted(self) -> None:
        """Begin a new journal, and write what the logs before it come to as its snapshot."""
        try:
            self._sync()  # most of the work, while others write
            with self._write_lock:
                if self._stopped.is_set():
                    return
                self._sync()
                number = self._number + 1
                size = os.fstat(self._journal).st_size - HEADER
                before = size // self._kind.itemsize
                head = header(self._space, self._origin, number, before=before)
                self._create(self._path(number, "journal"), [head])
                handle = os.open(self._path(number, "journal"), os.O_WRONLY | os.O_APPEND)
                os.close(self._journal)
                self._journal, self._number = handle, number
            self._write_snapshot(number)
        except (OSError, MemoryError, IndexFilesError) as error:
            self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        state = "nothing is written any more" if self._broken else "the journal goes on"
        why = str(error) or repr(error)  # a MemoryError may say nothing
        log.warning("%s could not be compacted (%s): %s", self.folder, why, state)

    def _write_snapshot(self, number: int) -> None:
        """Write snapshot ``number`` from the snapshot in use and its journals; drop older ones."""
        logs = [(n, "journal") for n in range(self._base, number)]
        if self._base:
            logs.insert(0, (self._base, "snapshot"))
        records = [self._read(*place).records for place in logs]
        for place, part in zip(logs, records, strict=True):
            if (record := first_damaged(part)) is not None:  # sound when it was opened
                raise DamagedError(f"{self._path(*place)} is damaged at record {record}")
        places = last_settings(records)
        parts = (part.tobytes() for part in _parts(records, places))
        head = header(self._space, self._origin, number, len(places))
        if not self._create(self._path(number, "snapshot"), chain([head], parts)):
            return
        with self._write_lock:
            before, self._base = self._base, number
            self._held -= sum(map(len, records)) - len(places)
            self._compact_at = 0
        for kind in ("snapshot", "journal"):
            for old in self._numbers(kind):
                if old < before or (kind == "snapshot" and before < old < number):
                    self._path(old, kind).unlink(missing_ok=True)

    def _create(self, path: Path, content: Iterable[bytes]) -> bool:
        """Make a file, whole or not at all; return False if the index was closed meanwhile."""
        temporary = path.with_name(f"{path.name}.tmp")
        self._require_there()
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                for part in content:
                    if self._stopped.is_set():
                        return False
                    write_all(handle, memoryview(part))
                os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(temporary, path)
            sync_folder(self.folder)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _numbers(self, kind: str) -> list[int]:
        found = (path for path in self.folder.iterdir() if LOGS.fullmatch(path.name))
        return sorted(int(path.stem) for path in found if path.suffix == f".{kind}")

    def _read(self, number: int, kind: str) -> Log:
        """Return a log of this index, as it was written under its name."""
        path = self._path(number, kind)
        found = read_log(path, self._space)
        if (found.origin, found.name) != (self._origin, path.name):
            other = "" if found.origin == self._origin else " of another index"
            raise IndexFilesError(
                f"{path} was written as {found.name}{other}; put back the file that belongs "
                "there, restore the folder from a copy, or remove it to start empty"
            )
        return found

    def _path(self, number: int, kind: str) -> Path:
        return self.folder / f"{number}.{kind}"


def _parts(records: list[Records], places: NDArray[np.int64]) -> Iterator[Records]:
    for first in range(0, len(places), AT_ONCE):
        yield take(records, places[first : first + AT_ONCE])
