"""Whose a folder is: forks, files of others, and folders that go while they are open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from keynet.cache import index_files
from keynet.cache.index import CodeIndex
from keynet.cache.index_lock import FolderLock
from keynet.cache.index_log import IndexFilesError
from keynet.types import Key, KeySpace

Make = Callable[..., Key]

FORKED = """
import os, sys, time
sys.path[:0] = [{root!r}, {tests!r}]
from conftest import SPACE, content_of, make_key
from keynet.cache import index_files
from keynet.cache.index import CodeIndex
from keynet.cache.index_log import IndexFilesError
folder = {folder!r}
index_files.COMPACT_FROM = 4

def in_child(act):
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return child

def ended(child):
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""

REFUSED = """
index = CodeIndex(SPACE, folder)
index.insert_many(range(4), [make_key(n) for n in range(4)])
files = {name: (open(os.path.join(folder, name), "rb").read()) for name in os.listdir(folder)}

def act():
    calls = [lambda: index.insert(9, make_key(9)), lambda: index.remove(0), index.flush]
    for call in calls + 20 * [lambda: index.replace(0, make_key(9))]:
        try:
            call()
        except IndexFilesError as error:
            assert "was opened before a fork; open it in one process" in str(error), error
        else:
            raise AssertionError
    assert [n.entry for n in index.search(make_key(1))] == [1]
    index.close()
    index.close()

with index._write_lock:  # as if another thread wrote
    ended(in_child(act))
assert files == {n: (open(os.path.join(folder, n), "rb").read()) for n in os.listdir(folder)}
try:
    CodeIndex(SPACE, folder)
except IndexFilesError as error:
    assert "in use by an index of this process" in str(error)
else:
    raise AssertionError
index.insert_many(range(10, 14), [make_key(n) for n in range(4)])
index.flush()
kept = content_of(index)
index.close()
assert content_of(CodeIndex(SPACE, folder)) == kept
"""

OUTLIVED = """
index = CodeIndex(SPACE, folder)
index.insert(0, make_key(0))
reader, writer = os.pipe()

def act():
    os.close(writer)
    os.read(reader, 1)

child = in_child(act)
index.close()
again = CodeIndex(SPACE, folder)
assert 0 in again
os.close(writer)
ended(child)
"""


@pytest.mark.parametrize("program", [REFUSED, OUTLIVED])
def test_a_forked_child(tmp_path: Path, program: str) -> None:
    places = {"root": str(Path(__file__).parents[3]), "tests": str(Path(__file__).parent)}
    begin = FORKED.format(**places, folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", begin + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["notes.tmp", "lock", "thesis.txt", "00.journal", "\u00b2.journal"]
)
def test_a_folder_of_something_else_is_left_alone(
    space: KeySpace, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(
        IndexFilesError, match=f"holds {name} and no index; choose an empty"
    ) as caught:
        CodeIndex(space, tmp_path)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_files_beside_an_index_are_left_alone(
    space: KeySpace, tmp_path: Path, filled: Callable, reopened: Callable
) -> None:
    kept = filled(tmp_path)
    others = ["notes.tmp", "x.snapshot.tmp", "\u00b2.journal", "\u00b2.journal.tmp"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / "3.snapshot.tmp").write_text("half")
    assert reopened(tmp_path) == kept
    assert {path.name for path in tmp_path.iterdir()} == {"0.journal", "lock", *others}


def test_an_opening_that_was_killed_is_as_none(space: KeySpace, tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("123\n")
    (tmp_path / "0.journal.tmp").write_text("half")
    CodeIndex(space, tmp_path).close()
    assert {path.name for path in tmp_path.iterdir()} == {"0.journal", "lock"}


@pytest.mark.parametrize("name", ["0.journal", "0.snapshot", "lock", "0.journal.tmp"])
def test_a_directory_in_the_place_of_a_file(space: KeySpace, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(
        IndexFilesError, match=f"{name} is no file.* move it away, or choose another"
    ):
        CodeIndex(space, tmp_path)


def gone(folder: Path) -> None:
    shutil.rmtree(folder)


def moved_and_made_anew(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    shutil.copytree(folder.with_name("moved"), folder)


def without_lock(folder: Path) -> None:
    (folder / "lock").unlink()


REMOVALS = pytest.mark.parametrize("remove", [gone, moved_and_made_anew, without_lock])


@REMOVALS
def test_a_flush_into_a_folder_that_is_gone_fails(
    space: KeySpace, key: Make, tmp_path: Path, remove: Callable
) -> None:
    folder = tmp_path / "index"
    index = CodeIndex(space, folder)
    index.insert(1, key(1))
    index.flush()
    remove(folder)
    with pytest.raises(IndexFilesError, match="was removed or replaced while the index") as caught:
        index.flush()
    assert "\n" not in str(caught.value)
    with pytest.raises(OSError, match="no longer written: its folder was removed or replaced"):
        index.insert(2, key(2))
    assert index.search(key(1))[0].entry == 1
    with pytest.raises(OSError, match="no longer written"):
        index.close()


@REMOVALS
def test_a_compaction_into_a_folder_that_is_gone_writes_nothing(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    remove: Callable,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(index_files, "COMPACT_FROM", 4)
    folder = tmp_path / "index"
    index = CodeIndex(space, folder)
    index.insert(1, key(1))
    remove(folder)
    with pytest.raises(OSError, match="no longer written: its folder was removed or replaced"):
        for _ in range(20):
            index.replace(1, key(1))
            index.settle()
    assert "while the index was open" in caplog.text
    assert "nothing is written any more" in caplog.text
    assert not (folder / "1.journal").exists()
    with pytest.raises(OSError, match="no longer written"):
        index.close()


def test_a_lock_is_released_once(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    assert lock.mine and (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    lock.require_mine()
    lock.require_there()
    lock.release()
    lock.release()
    FolderLock(tmp_path).release()
