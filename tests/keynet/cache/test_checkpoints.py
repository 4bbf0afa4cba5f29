"""Checkpoints beside those who write."""

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from keynet.cache.checkpoints import COMMITS, Checkpoints


@pytest.fixture
def writer(tmp_path: Path):
    connection = sqlite3.connect(tmp_path / "some.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE some (value BLOB)")
    yield connection
    connection.close()


def commit(writer: sqlite3.Connection, checkpoints: Checkpoints, times: int) -> None:
    for _ in range(times):
        writer.execute("INSERT INTO some VALUES (zeroblob(3000))")
        checkpoints.committed()


def until(what) -> bool:
    end = time.monotonic() + 10
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(what())


def test_what_is_committed_moves_into_the_file(writer: sqlite3.Connection, tmp_path: Path) -> None:
    file = tmp_path / "some.sqlite"
    checkpoints = Checkpoints(writer, str(file))
    commit(writer, checkpoints, COMMITS - 1)
    time.sleep(0.1)
    assert file.stat().st_size < 3000 * COMMITS
    commit(writer, checkpoints, 1)
    assert until(lambda: file.stat().st_size >= 3000 * COMMITS)
    checkpoints.close()
    names = {thread.name for thread in threading.enumerate()}
    assert "keynet-checkpoints" not in names


def test_a_checkpoint_that_fails_leaves_the_next_one_to_go_on(
    writer: sqlite3.Connection, tmp_path: Path
) -> None:
    file = tmp_path / "some.sqlite"
    checkpoints = Checkpoints(writer, str(file))
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM some").fetchall()  # holds its state: nothing moves
    commit(writer, checkpoints, COMMITS)
    time.sleep(0.1)
    assert file.stat().st_size < 3000 * COMMITS
    other.execute("COMMIT")
    other.close()
    commit(writer, checkpoints, COMMITS)
    assert until(lambda: file.stat().st_size >= 2 * 3000 * COMMITS)
    checkpoints.close()


def test_while_checkpoints_fail_the_log_empties_itself(
    writer: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keynet.cache.checkpoints.MOST_PAGES", 50)
    file = tmp_path / "some.sqlite"
    checkpoints = Checkpoints(writer, str(file))
    commit(writer, checkpoints, COMMITS - 1)
    assert file.stat().st_size > 3000 * (COMMITS - 60)
    checkpoints.close()
