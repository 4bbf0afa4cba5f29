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

from keynet.cache.acceptance import FixedThreshold
from keynet.cache.cache import CacheFilesError, Entry, Hit, Miss, SemanticCache
from keynet.types import Key, KeySpace, Request


class Maker:
    """Makes the key of a number that is the request's text, in the scope that is its tenant."""

    def __init__(self, space: KeySpace, key: Callable[..., Key]) -> None:
        self.space, self._key = space, key

    def encode(self, requests: Request) -> Key:
        assert requests.text is not None
        return self._key(int(requests.text), requests.scope.get("tenant", 0), self.space)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def maker(space: KeySpace, key: Callable[..., Key]) -> Maker:
    return Maker(space, key)


def opened(folder: Path | None, maker: Any, **options: Any) -> SemanticCache:
    return SemanticCache(folder, maker, acceptance=FixedThreshold(0.99), **options)


def request(number: int, **scope: Any) -> Request:
    return Request(text=str(number), scope=scope)


def stored(cache: SemanticCache, number: int, response: Any = None, **scope: Any) -> Entry:
    entry = cache.insert(request(number, **scope), response or f"answer {number}")
    assert entry is not None
    return entry


def test_a_removed_index_is_built_again(maker: Maker, tmp_path: Path) -> None:
    with opened(tmp_path / "c", maker) as cache:
        for number in range(40):
            stored(cache, number)
        cache.raise_version("key_space", "f00d")
        stored(cache, 100)
    shutil.rmtree(tmp_path / "c" / "index-f00d")
    with opened(tmp_path / "c", maker) as cache:
        assert isinstance(cache.lookup(request(100)), Hit)
        assert isinstance(cache.lookup(request(3)), Miss)  # its version was raised
        stored(cache, 101)  # and takes those along that the insert before left
        assert cache.stats().entries == 2 == cache._entries.count("f00d")


def test_an_index_with_more_than_was_stored_is_mended(maker: Maker, tmp_path: Path) -> None:
    with opened(tmp_path / "c", maker) as cache:
        stored(cache, 1)
        gone = stored(cache, 2)
    with sqlite3.connect(tmp_path / "c" / "entries.sqlite") as raw:
        raw.execute("DELETE FROM entries WHERE number = ?", (gone.number,))
    with opened(tmp_path / "c", maker) as cache:
        assert cache._entries.count("f00d") == 1 and isinstance(cache.lookup(request(2)), Miss)
        assert stored(cache, 3).number > gone.number


def test_the_order_of_use_survives(maker: Maker, tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path / "c", maker, clock=clock) as cache:
        for number in range(4):
            clock.now += 1
            stored(cache, number)
        clock.now += 1
        cache.lookup(request(0))
    with opened(tmp_path / "c", maker, max_entries=2) as cache:
        assert [isinstance(cache.lookup(request(n)), Hit) for n in range(4)] == [1, 0, 0, 1]


def test_a_second_cache_is_refused(maker: Maker, tmp_path: Path) -> None:
    with (
        opened(tmp_path / "c", maker),
        pytest.raises(CacheFilesError, match="in use by a cache of this process"),
    ):
        opened(tmp_path / "c", maker)
    opened(tmp_path / "c", maker).close()


def test_a_forked_child_is_refused(maker: Maker, tmp_path: Path) -> None:
    with opened(tmp_path / "c", maker) as cache:
        stored(cache, 1)
        child = os.fork()
        if not child:
            said = 0
            for call in (
                lambda: cache.lookup(request(1)),
                lambda: cache.insert(request(2), "x"),
                cache.flush,
            ):
                try:
                    call()
                except CacheFilesError as error:
                    said += "opened before a fork" in str(error)
            cache.close()
            os._exit(said)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert isinstance(cache.lookup(request(1)), Hit)
        stored(cache, 2)


def test_a_folder_of_something_else_is_left_alone(maker: Maker, tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(CacheFilesError, match=r"holds holiday\.jpg and no cache"):
        opened(tmp_path, maker)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize("damage", ["garbage", "format", "foreign"])
def test_a_damaged_file_is_one_line(maker: Maker, tmp_path: Path, damage: str) -> None:
    with opened(tmp_path / "c", maker) as cache:
        stored(cache, 1)
    path = tmp_path / "c" / "entries.sqlite"
    if damage == "garbage":
        path.write_bytes(b"garbage" * 1000)
    else:
        with sqlite3.connect(path) as raw:
            statement = "UPDATE about SET value = '9'" if damage == "format" else "DROP TABLE about"
            raw.execute(statement)
    said = {"garbage": "is damaged", "format": "has format 9", "foreign": "is not of a cache"}
    with pytest.raises(CacheFilesError, match=said[damage]):
        opened(tmp_path / "c", maker)


def test_a_full_disk_changes_nothing(
    maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "c", maker, max_entries=2) as cache:
        stored(cache, 1)
        stored(cache, 2)
        pages = cache._entries.store._writer.execute("PRAGMA page_count").fetchone()[0]
        cache._entries.store._writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(OSError, match="free some space") as caught:
            cache.insert(request(3), "x" * 100_000)
        assert caught.value.errno == errno.ENOSPC
        assert [isinstance(cache.lookup(request(n)), Hit) for n in (1, 2, 3)] == [1, 1, 0]
        cache._entries.store._writer.execute("PRAGMA max_page_count = 1000000")

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "index cannot be written; free some space")

        with monkeypatch.context() as patch:
            patch.setattr("keynet.cache.index.CodeIndex.insert", full)
            with pytest.raises(OSError, match="free some space"):
                stored(cache, 3)
        assert [isinstance(cache.lookup(request(n)), Hit) for n in (1, 2, 3)] == [1, 1, 0]
        stored(cache, 4)
        assert len(cache) == 2
    with opened(tmp_path / "c", maker) as cache:
        assert len(cache) == 2 and isinstance(cache.lookup(request(4)), Hit)


def test_a_closed_cache_says_so(maker: Maker, tmp_path: Path) -> None:
    cache = opened(tmp_path / "c", maker)
    cache.close()
    cache.close()
    for call in (lambda: cache.lookup(request(1)), lambda: cache.insert(request(1), "x")):
        with pytest.raises(ValueError, match=r"closed.*open it again"):
            call()
