"""Folders of an index that were damaged, cut or left by a killed process."""

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
from keynet.cache.index_log import HEADER, IndexFilesError, header, read_log, record_type
from keynet.types import Key, KeySpace

Make = Callable[..., Key]
SPACE = KeySpace("toy", 1, 16, 64, "f00d")
SIZE = record_type(SPACE).itemsize


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def compacted(content: Callable, key: Make, folder: Path) -> dict[int, tuple]:
    """Make a folder with snapshots 1 and 2, their journals, and what follows in the last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_files, "COMPACT_FROM", 30)
        with CodeIndex(SPACE, folder) as index:
            index.insert_many(range(10), [key(n) for n in range(10)])
            number = 0
            while "2.snapshot" not in names(folder):
                number += 1
                index.replace(number % 10, key(number))
                index.settle()
            index.remove(3)
            index.insert(10, key(10, 1))
            return content(index)


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 8
    path.write_bytes(raw)


@pytest.mark.parametrize("at", [3, HEADER - 1, HEADER + 40, -1])
def test_a_damaged_snapshot_falls_back_without_loss(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    at: int,
    caplog: pytest.LogCaptureFixture,
    content: Callable,
    reopened: Callable,
) -> None:
    kept = compacted(content, key, tmp_path)
    flip(tmp_path / "2.snapshot", at)
    with CodeIndex(space, tmp_path) as index:
        assert content(index) == kept
        assert "2.snapshot" in caplog.text and "nothing is lost" in caplog.text
        assert "start empty" not in caplog.text
        index.settle()
        assert "3.snapshot" in names(tmp_path)  # written anew
        assert "2.snapshot" not in names(tmp_path)
        index.insert(11, key(11))
        kept = content(index)
    caplog.clear()
    assert reopened(tmp_path) == kept
    assert not caplog.records


def test_a_truncated_snapshot_falls_back(
    key: Make, tmp_path: Path, content: Callable, reopened: Callable
) -> None:
    kept = compacted(content, key, tmp_path)
    path = tmp_path / "2.snapshot"
    os.truncate(path, path.stat().st_size - SIZE)  # at a record's end: every CRC is right
    assert reopened(tmp_path) == kept


def test_two_damaged_snapshots_are_an_error(
    space: KeySpace, key: Make, tmp_path: Path, content: Callable
) -> None:
    compacted(content, key, tmp_path)
    flip(tmp_path / "1.snapshot", -1)
    flip(tmp_path / "2.snapshot", -1)
    with pytest.raises(IndexFilesError, match=r"2.snapshot is damaged .* no older snapshot"):
        CodeIndex(space, tmp_path)
    with pytest.raises(IndexFilesError, match="is damaged"):  # not "in use"
        CodeIndex(space, tmp_path)


def test_a_journal_cut_at_any_byte_of_its_last_record(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: Callable,
    reopened: Callable,
    filled: Callable,
) -> None:
    whole = filled(tmp_path / "whole")
    raw = (tmp_path / "whole" / "0.journal").read_bytes()
    without = {entry: row for entry, row in whole.items() if entry != 19}
    for cut in range(SIZE + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "0.journal").write_bytes(raw[: len(raw) - cut])
        caplog.clear()
        with CodeIndex(space, folder) as index:
            assert content(index) == (whole if cut == 0 else without)
            said = 0 < cut < SIZE
            assert len(caplog.records) == said
            if said:
                assert f"cut off {SIZE - cut} bytes" in caplog.text
                assert "kept in 0.journal.cut" in caplog.text
                cut_off = (folder / "0.journal.cut").read_bytes()
                assert cut_off == raw[len(raw) - SIZE : len(raw) - cut]
            index.insert(30, key(30))
        caplog.clear()
        assert set(reopened(folder)) == {*without, 30, *([19] if cut == 0 else [])}
        assert not caplog.records
        shutil.rmtree(folder)


@pytest.mark.parametrize("tail", [b"\0" * 3 * SIZE, b"\x55" * 9 + b"\0" * 2 * SIZE, b"\0" * 7])
def test_what_a_power_cut_leaves_behind_is_cut_off(
    tmp_path: Path, tail: bytes, reopened: Callable, filled: Callable
) -> None:
    kept = filled(tmp_path)
    with (tmp_path / "0.journal").open("ab") as file:
        file.write(tail)
    assert reopened(tmp_path) == kept
    assert (tmp_path / "0.journal.cut").read_bytes() == tail


@pytest.mark.parametrize("at", [-SIZE, -SIZE // 2, -4, -1])
@pytest.mark.parametrize("loose", [0, 9])
def test_a_whole_last_record_that_is_damaged_is_refused_with_its_mend(
    space: KeySpace, tmp_path: Path, at: int, loose: int, reopened: Callable, filled: Callable
) -> None:
    kept = filled(tmp_path)
    path = tmp_path / "0.journal"
    flip(path, at)
    with path.open("ab") as file:
        file.write(b"\x55" * loose)
    before = path.read_bytes()
    with pytest.raises(IndexFilesError, match="damaged at record 19 and as long as") as caught:
        CodeIndex(space, tmp_path)
    assert path.read_bytes() == before
    command = str(caught.value).partition("others: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert reopened(tmp_path) == {entry: kept[entry] for entry in range(19)}


@pytest.mark.parametrize("name", ["1.snapshot", "2.snapshot", "1.journal", "2.journal"])
def test_a_log_of_another_index_is_refused(
    space: KeySpace, key: Make, tmp_path: Path, name: str, content: Callable, reopened: Callable
) -> None:
    kept = compacted(content, key, tmp_path / "a")
    compacted(content, key, tmp_path / "b")
    own = (tmp_path / "a" / name).read_bytes()
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    if name == "1.snapshot":  # read when the one after is damaged
        flip(tmp_path / "a" / "2.snapshot", -1)
    elif name == "1.journal":
        (tmp_path / "a" / "2.snapshot").unlink()
    with pytest.raises(IndexFilesError, match="of another index; put back the file"):
        CodeIndex(space, tmp_path / "a")
    (tmp_path / "a" / name).write_bytes(own)
    assert reopened(tmp_path / "a") == kept


@pytest.mark.parametrize("kind", ["journal", "snapshot"])
def test_logs_that_were_swapped_are_refused(
    space: KeySpace, key: Make, tmp_path: Path, kind: str, content: Callable
) -> None:
    compacted(content, key, tmp_path)
    first, second = tmp_path / f"1.{kind}", tmp_path / f"2.{kind}"
    first.rename(tmp_path / "between")
    second.rename(first)
    (tmp_path / "between").rename(second)
    with pytest.raises(IndexFilesError, match=f"2.{kind} was written as 1.{kind}; put back"):
        CodeIndex(space, tmp_path)


def test_a_snapshot_named_as_a_journal_is_refused(
    space: KeySpace, key: Make, tmp_path: Path, content: Callable
) -> None:
    compacted(content, key, tmp_path)
    shutil.copy(tmp_path / "2.snapshot", tmp_path / "2.journal")
    with pytest.raises(IndexFilesError, match=r"2.journal was written as 2.snapshot; put back"):
        CodeIndex(space, tmp_path)


def test_damage_in_the_middle_is_refused_with_its_mend(
    space: KeySpace, tmp_path: Path, reopened: Callable, filled: Callable
) -> None:
    kept = filled(tmp_path)
    path = tmp_path / "0.journal"
    flip(path, HEADER + 12 * SIZE + 5)
    before = path.read_bytes()
    with pytest.raises(IndexFilesError, match="damaged at record 12 and sound behind") as caught:
        CodeIndex(space, tmp_path)
    assert path.read_bytes() == before
    command = str(caught.value).partition("others: ")[2]
    subprocess.run(command, shell=True, check=True)
    assert reopened(tmp_path) == {entry: kept[entry] for entry in range(12)}


@pytest.mark.parametrize("cut", [1, SIZE, 2 * SIZE])
def test_a_journal_in_the_middle_is_whole(
    space: KeySpace, key: Make, tmp_path: Path, content: Callable, cut: int, reopened: Callable
) -> None:
    kept = compacted(content, key, tmp_path)
    (tmp_path / "2.snapshot").unlink()
    path = tmp_path / "1.journal"
    whole = path.read_bytes()
    os.truncate(path, len(whole) - cut)  # at a record's end: every CRC is right
    with pytest.raises(IndexFilesError, match=r"1\.journal lacks its end"):
        CodeIndex(space, tmp_path)
    path.write_bytes(whole)
    assert reopened(tmp_path) == kept


def test_a_journal_may_have_grown_since_the_next_was_begun(
    space: KeySpace, key: Make, tmp_path: Path, content: Callable, reopened: Callable
) -> None:
    kept = compacted(content, key, tmp_path)
    (tmp_path / "2.snapshot").unlink()
    path = tmp_path / "2.journal"
    head = header(space, read_log(path, space).origin, 2, before=1)
    path.write_bytes(head + path.read_bytes()[HEADER:])
    assert reopened(tmp_path) == kept


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("*.journal", "lacks 2.journal"),
        ("2.journal", "lacks 2.journal"),
        ("*.snapshot", "lacks 0.journal"),
        ("2.snapshot", None),
        ("1.*", None),
    ],
)
def test_files_that_are_missing(
    space: KeySpace,
    key: Make,
    tmp_path: Path,
    lost: str,
    message: str | None,
    content: Callable,
    reopened: Callable,
) -> None:
    kept = compacted(content, key, tmp_path)
    for path in tmp_path.glob(lost):
        path.unlink()
    if message is None:
        assert reopened(tmp_path) == kept
    else:
        with pytest.raises(IndexFilesError, match=f"{message}; restore the folder from a copy"):
            CodeIndex(space, tmp_path)


KILLED = """
import os, random, signal, sys, time
sys.path[:0] = [{root!r}, {tests!r}]
from conftest import SPACE, make_key
from keynet.cache import index_files
from keynet.cache.index import CodeIndex
index_files.COMPACT_FROM = 60
folder = {folder!r}
random.seed(0)
done = 0
for turn in range(12):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        index = CodeIndex(SPACE, folder)
        number = done
        while True:
            entry = number % 40
            (index.replace if entry in index else index.insert)(entry, make_key(number))
            number += 1
            os.write(writer, number.to_bytes(4, "little"))
    os.close(writer)
    time.sleep(0.05 + random.random() * 0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        raw = file.read()
    done = int.from_bytes(raw[-4:], "little") if raw else done
    with CodeIndex(SPACE, folder) as index:
        assert len(index) == min(done, 40) or len(index) == min(done + 1, 40), (len(index), done)
        under_way = 0
        for entry in index._places:
            last = done - 1 - (done - 1 - entry) % 40
            stored = index.search(make_key(last), 99, radius=0) if last >= 0 else []
            if entry not in [n.entry for n in stored]:  # the call that was under way
                later = [n.entry for n in index.search(make_key(done), 99, radius=0)]
                assert entry == done % 40 and entry in later, (entry, done)
                under_way += 1
        assert under_way <= 1
        done += under_way
print(done, sorted(os.listdir(folder)))
"""


def test_killed_in_the_middle_of_writing(tmp_path: Path) -> None:
    program = KILLED.format(
        root=str(Path(__file__).parents[3]), tests=str(Path(__file__).parent), folder=str(tmp_path)
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 200
    assert "snapshot" in done.stdout
