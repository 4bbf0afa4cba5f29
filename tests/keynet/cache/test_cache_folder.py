"""A cache and its folder: restarts, other processes, damage and full disks."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keynet.cache.cache import CacheFilesError, Hit, Miss


def test_a_removed_index_is_built_again(maker: Any, tmp_path: Path) -> None:
    with maker.opened(tmp_path / "c") as cache:
        for number in range(40):
            maker.stored(cache, number)
        cache.raise_version("key_space", "f00d")
        maker.stored(cache, 100)
    shutil.rmtree(tmp_path / "c" / "index-f00d")
    with maker.opened(tmp_path / "c") as cache:
        assert isinstance(cache.lookup(maker.request(100)), Hit)
        assert isinstance(cache.lookup(maker.request(3)), Miss)  # its version was raised
        maker.stored(cache, 101)  # and takes those along that the insert before left
        assert cache.stats().entries == 2 == cache._entries.count("f00d")


def test_an_index_with_more_than_was_stored_is_mended(maker: Any, tmp_path: Path) -> None:
    with maker.opened(tmp_path / "c") as cache:
        maker.stored(cache, 1)
        gone = maker.stored(cache, 2)
    with sqlite3.connect(tmp_path / "c" / "entries.sqlite") as raw:
        raw.execute("DELETE FROM entries WHERE number = ?", (gone.number,))
    with maker.opened(tmp_path / "c") as cache:
        assert cache._entries.count("f00d") == 1 and isinstance(
            cache.lookup(maker.request(2)), Miss
        )
        assert maker.stored(cache, 3).number > gone.number


def test_the_order_of_use_survives(maker: Any, new_clock: Callable, tmp_path: Path) -> None:
    clock = new_clock()
    with maker.opened(tmp_path / "c", clock=clock) as cache:
        for number in range(4):
            clock.now += 1
            maker.stored(cache, number)
        clock.now += 1
        cache.lookup(maker.request(0))
    with maker.opened(tmp_path / "c", max_entries=2) as cache:
        assert [isinstance(cache.lookup(maker.request(n)), Hit) for n in range(4)] == [1, 0, 0, 1]


def test_a_second_cache_is_refused(maker: Any, tmp_path: Path) -> None:
    with (
        maker.opened(tmp_path / "c"),
        pytest.raises(CacheFilesError, match="in use by a cache of this process"),
    ):
        maker.opened(tmp_path / "c")
    maker.opened(tmp_path / "c").close()


def test_a_forked_child_is_refused(maker: Any, tmp_path: Path) -> None:
    with maker.opened(tmp_path / "c") as cache:
        maker.stored(cache, 1)
        child = os.fork()
        if not child:
            said = 0
            for call in (
                lambda: cache.lookup(maker.request(1)),
                lambda: cache.insert(maker.request(2), "x"),
                cache.flush,
            ):
                try:
                    call()
                except CacheFilesError as error:
                    said += "opened before a fork" in str(error)
            cache.close()
            os._exit(said)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert isinstance(cache.lookup(maker.request(1)), Hit)
        maker.stored(cache, 2)


def test_a_folder_of_something_else_is_left_alone(maker: Any, tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(CacheFilesError, match=r"holds holiday\.jpg and no cache"):
        maker.opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize("damage", ["garbage", "format", "foreign"])
def test_a_damaged_file_is_one_line(maker: Any, tmp_path: Path, damage: str) -> None:
    with maker.opened(tmp_path / "c") as cache:
        maker.stored(cache, 1)
    path = tmp_path / "c" / "entries.sqlite"
    if damage == "garbage":
        path.write_bytes(b"garbage" * 1000)
    else:
        with sqlite3.connect(path) as raw:
            statement = "UPDATE about SET value = '9'" if damage == "format" else "DROP TABLE about"
            raw.execute(statement)
    said = {"garbage": "is damaged", "format": "has format 9", "foreign": "is not of a cache"}
    with pytest.raises(CacheFilesError, match=said[damage]):
        maker.opened(tmp_path / "c")


def test_a_full_disk_changes_nothing(
    maker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with maker.opened(tmp_path / "c", max_entries=2) as cache:
        maker.stored(cache, 1)
        maker.stored(cache, 2)
        pages = cache._entries.store._writer.execute("PRAGMA page_count").fetchone()[0]
        cache._entries.store._writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(OSError, match="free some space") as caught:
            cache.insert(maker.request(3), "x" * 100_000)
        assert caught.value.errno == errno.ENOSPC
        assert [isinstance(cache.lookup(maker.request(n)), Hit) for n in (1, 2, 3)] == [1, 1, 0]
        cache._entries.store._writer.execute("PRAGMA max_page_count = 1000000")

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "index cannot be written; free some space")

        with monkeypatch.context() as patch:
            patch.setattr("keynet.cache.index.CodeIndex.insert", full)
            with pytest.raises(OSError, match="free some space"):
                maker.stored(cache, 3)
        assert [isinstance(cache.lookup(maker.request(n)), Hit) for n in (1, 2, 3)] == [1, 1, 0]
        maker.stored(cache, 4)
        assert len(cache) == 2
    with maker.opened(tmp_path / "c") as cache:
        assert len(cache) == 2 and isinstance(cache.lookup(maker.request(4)), Hit)


def test_a_closed_cache_says_so(maker: Any, tmp_path: Path) -> None:
    cache = maker.opened(tmp_path / "c")
    cache.close()
    cache.close()
    for call in (
        lambda: cache.lookup(maker.request(1)),
        lambda: cache.insert(maker.request(1), "x"),
    ):
        with pytest.raises(ValueError, match=r"closed.*open it again"):
            call()
