from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache import index_files
from keynet.cache.index import CodeIndex
from keynet.cache.index_log import IndexFilesError, record_type
from keynet.types import Key, KeySpace

Make = Callable[..., Key]
SIZE = record_type(KeySpace("toy", 1, 16, 64, "f00d")).itemsize


def of(model: dict[int, Key]) -> dict[int, tuple]:
    """What ``content`` should be."""
    return {
        entry: (key.scope_digest, key.code.tobytes(), key.vector.astype(np.float16).tobytes())
        for entry, key in model.items()
    }


STEP = st.tuples(
    st.sampled_from(["set", "set", "remove", "open"]), st.integers(0, 9), st.integers(0, 99)
)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(STEP, max_size=60))
def test_what_was_done_is_there_after_opening_again(
    space: KeySpace,
    key: Make,
    tmp_path_factory: pytest.TempPathFactory,
    steps: list,
    content: Callable,
    reopened: Callable,
) -> None:
    folder = tmp_path_factory.mktemp("index")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_files, "COMPACT_FROM", 8)
        index, model = CodeIndex(space, folder), {}
        for what, entry, number in steps:
            if what == "open":
                index.close()
                index = CodeIndex(space, folder)
                assert content(index) == of(model)
            elif what == "remove":
                if entry in model:
                    index.remove(entry)
                    del model[entry]
            else:
                (index.replace if entry in model else index.insert)(entry, key(number, number % 3))
                model[entry] = key(number, number % 3)
        index.close()
        assert reopened(folder) == of(model)
    shutil.rmtree(folder)


def test_a_restored_index_searches_and_changes(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    content: Callable,
    reopened: Callable,
    filled: Callable,
) -> None:
    filled(tmp_path)
    with CodeIndex(space, tmp_path) as index:
        for number in range(20):
            assert index.search(key(number, number % 3))[0][:2] == (number, 0)
        index.remove(0)
        index.replace(1, key(100))
        index.insert(20, key(20))
        kept = content(index)
    assert reopened(tmp_path) == kept


def test_a_second_writer_is_kept_out(space: KeySpace, key: Make, tmp_path: Path) -> None:
    with (
        CodeIndex(space, tmp_path),
        pytest.raises(IndexFilesError, match="is in use by an index of this process; close"),
    ):
        CodeIndex(space, tmp_path)
    program = (
        "import sys; from pathlib import Path; from keynet.cache.index import CodeIndex\n"
        "from keynet.types import KeySpace\n"
        f"index = CodeIndex(KeySpace('toy', 1, 16, 64, 'f00d'), {str(tmp_path)!r})\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(IndexFilesError, match=f"is in use by an index of process {other.pid};"):
            CodeIndex(space, tmp_path)
        other.kill()  # a lock goes with its process
    CodeIndex(space, tmp_path).close()


def test_another_key_space_is_refused(
    space: KeySpace, tmp_path: Path, reopened: Callable, filled: Callable
) -> None:
    kept = filled(tmp_path)
    for change in ({"fingerprint": "beef"}, {"version": 2}, {"bits": 128}, {"dim": 8}):
        with pytest.raises(IndexFilesError, match="holds keys of toy v1"):
            CodeIndex(replace(space, **change), tmp_path)
    assert reopened(tmp_path) == kept


def full_after(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk take so many bytes more."""
    real, left = os.write, [taken]

    def write(handle: int, raw: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(handle, raw[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(index_files.os, "write", write)


@pytest.mark.parametrize("taken", [0, 1, SIZE - 1, SIZE, SIZE + 7])
def test_a_full_disk_changes_nothing(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    taken: int,
    content: Callable,
    reopened: Callable,
) -> None:
    with CodeIndex(space, tmp_path) as index:
        index.insert_many(range(5), [key(n) for n in range(5)])
        kept = content(index)
        for needed, call in (
            (2 * SIZE, lambda: index.insert_many([7, 8], [key(7), key(8, scope=1)])),
            (SIZE, lambda: index.insert(7, key(7))),
            (SIZE, lambda: index.replace(1, key(7))),
            (SIZE, lambda: index.remove(1)),
        ):
            if taken >= needed:
                continue
            with monkeypatch.context() as patch:
                full_after(taken, patch)
                with pytest.raises(OSError, match="cannot be written") as caught:
                    call()
            assert caught.value.errno == errno.ENOSPC
            assert "(No space left on device); free some space" in str(caught.value)
            assert "\n" not in str(caught.value)
            assert content(index) == kept
        assert index.search(key(7), radius=0) == []
        index.insert(7, key(7))  # there is space again
        kept = content(index)
    assert reopened(tmp_path) == kept


def test_a_half_written_record_that_stays_stops_writing(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: Callable,
    reopened: Callable,
) -> None:
    index = CodeIndex(space, tmp_path)
    index.insert(1, key(1))
    kept = content(index)

    def fails(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        full_after(5, patch)
        patch.setattr(index_files.os, "ftruncate", fails)
        with pytest.raises(OSError, match="No space left"):
            index.insert(2, key(2))
    for call in (lambda: index.insert(2, key(2)), lambda: index.remove(1), index.flush):
        with pytest.raises(OSError, match=r"no longer written: a half-written record .* open it"):
            call()
    assert index.search(key(1))[0].entry == 1
    with pytest.raises(OSError, match="no longer written"):
        index.close()
    assert reopened(tmp_path) == kept


def test_a_flush_that_failed_is_not_forgotten(
    space: KeySpace, key: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    index = CodeIndex(space, tmp_path)
    index.insert(1, key(1))
    index.flush()
    with monkeypatch.context() as patch:
        patch.setattr(index_files.os, "fsync", fails)
        with pytest.raises(OSError, match=r"cannot be flushed \(Input/output error\)"):
            index.flush()
    with pytest.raises(OSError, match="no longer written: an earlier flush failed"):
        index.flush()
    with pytest.raises(OSError, match="no longer written"):
        index.close()
    CodeIndex(space, tmp_path).close()  # nobody holds the lock


def test_folders_that_cannot_be(space: KeySpace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name, mend in (("file", "is a file"), ("file/below", "is a file"), ("link", "a link to")):
        with pytest.raises(OSError, match=f"index cannot be opened.*{mend}.*another fol") as caught:
            CodeIndex(space, tmp_path / name)
        assert "\n" not in str(caught.value) and "space" not in str(caught.value)
    with pytest.raises(IndexFilesError, match='folder is ""; name one'):
        CodeIndex(space, "")


def test_an_interrupted_write_is_cut_off(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: Callable,
    reopened: Callable,
) -> None:
    real = os.write

    def interrupted(handle: int, raw: memoryview) -> int:
        real(handle, raw[: SIZE + 7])
        raise KeyboardInterrupt

    with CodeIndex(space, tmp_path) as index:
        index.insert(1, key(1))
        with monkeypatch.context() as patch:
            patch.setattr(index_files.os, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                index.insert_many([2, 3], [key(2), key(3)])
        index.insert(4, key(4))
        with monkeypatch.context() as patch:
            full_after(5, patch)
            with pytest.raises(OSError, match="cannot be written"):
                index.insert(5, key(5))
        kept = content(index)
    assert reopened(tmp_path) == kept == of({1: key(1), 4: key(4)})


def test_an_index_in_memory_needs_no_file_locks(
    space: KeySpace, key: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    spec = importlib.util.spec_from_file_location("index_files_again", index_files.__file__)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    CodeIndex(space).insert(1, key(1))
    with pytest.raises(IndexFilesError, match=r"cannot be locked .* in memory alone") as caught:
        CodeIndex(space, tmp_path)
    assert "\n" not in str(caught.value)
