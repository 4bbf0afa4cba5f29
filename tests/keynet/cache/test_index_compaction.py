"""Compaction: beside the index, one at a time, and harmless when it fails or is killed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from keynet.cache import index_files
from keynet.cache.index import CodeIndex
from keynet.cache.index_log import HEADER, record_type
from keynet.types import Key, KeySpace

Make = Callable[..., Key]
SIZE = record_type(KeySpace("toy", 1, 16, 64, "f00d")).itemsize


def of(model: dict[int, Key]) -> dict[int, tuple]:
    """What ``content`` should be."""
    return {
        entry: (key.scope_digest, key.code.tobytes(), key.vector.astype(np.float16).tobytes())
        for entry, key in model.items()
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_journal_is_compacted_and_the_generation_before_kept(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: Callable,
    reopened: Callable,
) -> None:
    monkeypatch.setattr(index_files, "COMPACT_FROM", 50)
    with CodeIndex(space, tmp_path) as index:
        index.insert_many(range(20), [key(n) for n in range(20)])
        seen = []
        for number in range(400):
            index.replace(number % 20, key(number))
            index.settle()
            seen.append(names(tmp_path))
        kept = content(index)
    assert ["0.journal", "1.journal", "1.snapshot", "lock"] in seen
    assert ["1.journal", "1.snapshot", "2.journal", "2.snapshot", "lock"] in seen
    assert max(map(len, seen)) == 5
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert size < 5 * HEADER + SIZE * 2 * (2 * 20 + 51)
    assert reopened(tmp_path) == kept


def test_compacting_keeps_what_is_done_meanwhile(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: Callable,
    reopened: Callable,
) -> None:
    monkeypatch.setattr(index_files, "COMPACT_FROM", 20)
    begun, go_on = threading.Event(), threading.Event()
    real = index_files.last_settings

    def slow(*args: object) -> object:
        begun.set()
        assert go_on.wait(10)
        return real(*args)

    with CodeIndex(space, tmp_path) as index:
        monkeypatch.setattr(index_files, "last_settings", slow)
        index.insert(0, key(0))
        for number in range(40):
            index.replace(0, key(number))
        assert begun.wait(10)
        index.insert(1, key(1))
        index.replace(0, key(77))
        go_on.set()
        index.settle()
        assert "1.snapshot" in names(tmp_path)
        kept = content(index)
    monkeypatch.undo()
    assert reopened(tmp_path) == kept == of({0: key(77), 1: key(1)})


def test_a_compaction_that_was_killed_is_as_none(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: Callable,
    reopened: Callable,
) -> None:
    """Between the new journal and its snapshot, with a half-written file beside."""
    monkeypatch.setattr(index_files, "COMPACT_FROM", 20)
    monkeypatch.setattr(index_files.IndexFiles, "_write_snapshot", lambda *_: None)
    with CodeIndex(space, tmp_path) as index:
        for number in range(60):
            (index.replace if 0 in index else index.insert)(0, key(number))
            index.settle()
        index.insert(1, key(1))
        kept = content(index)
    monkeypatch.undo()
    (tmp_path / "1.snapshot.tmp").write_bytes(b"half a snapshot")
    assert "1.journal" in names(tmp_path) and "1.snapshot" not in names(tmp_path)
    assert reopened(tmp_path) == kept == of({0: key(59), 1: key(1)})
    assert "1.snapshot.tmp" not in names(tmp_path)


def test_a_compaction_without_space_leaves_the_journal(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reopened: Callable,
) -> None:
    monkeypatch.setattr(index_files, "COMPACT_FROM", 20)

    def fails(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with CodeIndex(space, tmp_path) as index:
        with monkeypatch.context() as patch:
            patch.setattr(index_files.IndexFiles, "_create", fails)
            for number in range(30):
                (index.replace if 0 in index else index.insert)(0, key(number))
                index.settle()
        assert caplog.text.count("could not be compacted") == 1
        assert "No space left" in caplog.text
        for number in range(30):
            index.replace(0, key(number))
            index.settle()
        assert "1.snapshot" in names(tmp_path)  # tried again later
    assert reopened(tmp_path) == of({0: key(29)})


def churn(index: CodeIndex, key: Make, count: int) -> None:
    """Set entry 0 so many times."""
    for number in range(count):
        (index.replace if 0 in index else index.insert)(0, key(number))


def test_one_compaction_at_a_time(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: Callable,
    reopened: Callable,
) -> None:
    monkeypatch.setattr(index_files, "COMPACT_FROM", 20)
    begun, go_on, calls = threading.Event(), threading.Event(), []
    real = index_files.last_settings

    def slow(*args: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            begun.set()
            assert go_on.wait(10)
        return real(*args)

    with CodeIndex(space, tmp_path) as index:
        monkeypatch.setattr(index_files, "last_settings", slow)
        churn(index, key, 30)
        assert begun.wait(10)
        for _ in range(5):  # five times as many as a compaction asks for
            churn(index, key, 40)
            time.sleep(0.02)
        assert names(tmp_path) == ["0.journal", "1.journal", "lock"]
        go_on.set()
        index.settle()
        assert "1.snapshot" in names(tmp_path)
        for _ in range(4):
            churn(index, key, 40)
            index.settle()
        assert len(calls) > 3  # later ones work
        assert 0 <= index._files._held < 100
        assert len(names(tmp_path)) == 5
        kept = content(index)
    assert reopened(tmp_path) == kept


def test_a_snapshot_that_is_gone_is_not_passed_over(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(index_files, "COMPACT_FROM", 20)
    with CodeIndex(space, tmp_path) as index:
        index.insert(1, key(1))
        churn(index, key, 30)
        index.settle()
        (tmp_path / "1.snapshot").unlink()
        churn(index, key, 60)
        index.settle()
        assert "1.snapshot" in caplog.text and "the journal goes on" in caplog.text
        assert "2.snapshot" not in names(tmp_path)  # it would lack entry 1


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_compaction_that_cannot_begin_fails_no_call(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reopened: Callable,
    error: Exception,
) -> None:
    monkeypatch.setattr(index_files, "COMPACT_FROM", 20)

    def fails(*args: object) -> None:
        raise error

    with CodeIndex(space, tmp_path) as index:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fails)
            churn(index, key, 30)
        assert f"could not be compacted ({str(error) or repr(error)})" in caplog.text
        churn(index, key, 30)
        index.settle()
        assert "1.snapshot" in names(tmp_path)
    assert reopened(tmp_path) == of({0: key(29)})


def test_a_compaction_whose_flush_failed_says_that_writing_is_over(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(index_files, "COMPACT_FROM", 20)

    def fails(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    index = CodeIndex(space, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(index_files.os, "fsync", fails)
        with pytest.raises(OSError, match="no longer written"):
            for _ in range(30):
                churn(index, key, 1)
                index.settle()
    assert "nothing is written any more" in caplog.text
    assert "the journal goes on" not in caplog.text
    with pytest.raises(OSError, match="no longer written"):
        index.close()


def test_an_index_that_is_not_closed_delays_no_exit(
    key: Make, tmp_path: Path, reopened: Callable
) -> None:
    program = f"""
import sys, time
sys.path[:0] = [{str(Path(__file__).parents[3])!r}, {str(Path(__file__).parent)!r}]
from conftest import SPACE, make_key
from keynet.cache import index_files, scope_codes
from keynet.cache.index import CodeIndex
index = CodeIndex(SPACE, {str(tmp_path)!r})
index_files.COMPACT_FROM, scope_codes.LISTS_FROM = 20, 30
index_files.last_settings = lambda *_: time.sleep(300)
scope_codes.InvertedLists = lambda *_: time.sleep(300)
scope_codes.faiss = lambda: True
index.insert_many(range(40), [make_key(n) for n in range(40)])
for number in range(80):
    index.replace(number % 40, make_key(1000 + number))
while index._files._number == 0:
    time.sleep(0.01)
assert index._files._compaction.is_alive()
assert all(scope.codes._build.is_alive() for scope in index._scopes.values())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=40
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "1.journal" in names(tmp_path) and "1.snapshot" not in names(tmp_path)
    assert reopened(tmp_path) == of({n: key(1040 + n) for n in range(40)})
