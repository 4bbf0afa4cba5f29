"""Checkpoints of SQLite's write-ahead log, made beside those who write."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, suppress

COMMITS = 128  # between two checkpoints: a log of some 1,000 pages, SQLite's own measure
MOST_PAGES = 20_000  # 80 MB: beyond, whoever commits makes the checkpoint


class Checkpoints:
    """Moves what is committed into the file. Else each some hundredth commit would, for 10 ms.

    A checkpoint that fails, as on a full disk, leaves the log as it is; the next one goes on.

    Args:
        writer: The connection that commits; it no longer makes small checkpoints itself.
        path: Its file.
    """

    def __init__(self, writer: sqlite3.Connection, path: str) -> None:
        writer.execute(f"PRAGMA wal_autocheckpoint={MOST_PAGES}")
        self._path, self._commits = path, 0
        self._wake, self._ended = threading.Event(), False
        self._thread: threading.Thread | None = None  # from the first checkpoint on

    def committed(self) -> None:
        """Count a commit; called by the one thread that writes."""
        self._commits += 1
        if self._commits % COMMITS == 0:
            self._wake.set()
            if self._thread is None:
                run = threading.Thread(target=self._run, name="keynet-checkpoints", daemon=True)
                run.start()
                self._thread = run

    def close(self) -> None:
        """End, once the checkpoint that is on is made."""
        self._ended = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._wake.wait() and not self._ended:
            self._wake.clear()
            # Who reads or writes next is told of what is wrong.
            with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(self._path)) as one:
                one.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
