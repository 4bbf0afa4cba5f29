"""What the disk does to entries: it fills up, it is cut from its power, it is something else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keynet.cache.acceptance import FixedThreshold
from keynet.cache.cache import CacheFilesError, Miss, SemanticCache
from keynet.cache.key_maker import GivenKeys
from keynet.cache.spots import Spot
from keynet.cache.store import EntryStore
from keynet.types import Key, KeySpace

FULL = """
import importlib.util, resource, sys
from pathlib import Path
from keynet.cache.acceptance import FixedThreshold
from keynet.cache.cache import Hit, Miss, SemanticCache
from keynet.cache.key_maker import GivenKeys

spec = importlib.util.spec_from_file_location("conftest", sys.argv[1])
keys = importlib.util.module_from_spec(spec)
spec.loader.exec_module(keys)

def opened():
    options = dict(acceptance=FixedThreshold(1.0), max_entries=50)
    return SemanticCache(Path(sys.argv[2]), GivenKeys(keys.SPACE), **options)


ALL = range(72)


def there(numbers):
    found = [cache.lookup_key(keys.make_key(n), "image+text") for n in numbers]
    hits = {n: one for n, one in zip(numbers, found) if isinstance(one, Hit)}
    assert all(one.response == f"{n} " * 999 for n, one in hits.items())
    return list(hits)


def insert(number):
    cache.insert(Miss(keys.make_key(number), "image+text", ()), f"{number} " * 999)


with opened() as cache:
    for number in range(60):
        insert(number)
    none = resource.RLIM_INFINITY
    size = max(path.stat().st_size for path in Path(sys.argv[2]).rglob("*") if path.is_file())
    for room in (0, 9000):  # bytes that a file may grow by
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, none))
        failed, before = 0, there(ALL)
        for number in range(60, 72):
            try:
                insert(number)
                before = there(ALL)
                assert number in before
            except OSError as error:
                failed += 1
                assert "free some space" in str(error) or "check the disk" in str(error), error
                assert there(ALL) == before
                assert len(cache) == len(before)
        assert failed, room
        resource.setrlimit(resource.RLIMIT_FSIZE, (none, none))
        insert(7)
        last = there(ALL)
        assert 7 in last and len(cache) == len(last) == 50
        assert cache._entries.count(keys.SPACE.fingerprint) == 50
        size = max(path.stat().st_size for path in Path(sys.argv[2]).rglob("*") if path.is_file())
with opened() as cache:
    assert there(ALL) == last and len(cache) == len(last)
    assert cache._entries.count(keys.SPACE.fingerprint) == len(last)
"""


def opened(folder: Path, space: KeySpace) -> SemanticCache:
    return SemanticCache(folder, GivenKeys(space), acceptance=FixedThreshold(0.9))


def test_a_file_that_cannot_grow_changes_nothing(tmp_path: Path) -> None:
    conftest = Path(__file__).parent / "conftest.py"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(conftest), str(tmp_path / "c")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_flush_syncs_the_log_at_its_commit(
    space: KeySpace, key: Callable[..., Key], tmp_path: Path
) -> None:
    with opened(tmp_path / "c", space) as cache:
        cache.insert(Miss(key(1), "text", ()), "x")
        writer, ran = cache._entries.store._writer, list[str]()

        def levels() -> int:
            level: int = writer.execute("PRAGMA synchronous").fetchone()[0]
            return level

        assert levels() == 1  # NORMAL: a commit is not synced
        writer.set_trace_callback(ran.append)
        cache.flush()
        writer.set_trace_callback(None)
        assert ran[0] == "PRAGMA synchronous=FULL" and ran[-1] == "PRAGMA synchronous=NORMAL"
        assert "COMMIT" in ran and levels() == 1


def test_a_folder_that_is_a_file(space: KeySpace, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"x")
    with pytest.raises(OSError, match=r"cache cannot be opened .*choose another folder"):
        opened(tmp_path / "c", space)


def test_a_folder_that_was_replaced_is_said_by_flush(space: KeySpace, tmp_path: Path) -> None:
    cache = opened(tmp_path / "c", space)
    (tmp_path / "c").rename(tmp_path / "d")
    with pytest.raises(CacheFilesError, match="was removed or replaced while the cache was open"):
        cache.flush()
    with pytest.raises(CacheFilesError, match="was removed or replaced"):
        cache.close()
    opened(tmp_path / "d", space).close()


def test_a_damaged_page_is_one_line_whoever_reads_it(
    space: KeySpace, key: Callable[..., Key], tmp_path: Path
) -> None:
    with opened(tmp_path / "c", space) as cache:
        for number in range(200):
            cache.insert(Miss(key(number), "text", ()), "x" * 500)
    path = tmp_path / "c" / "entries.sqlite"
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(CacheFilesError, match=r"entries\.sqlite is damaged .*restore the folder"):
        opened(tmp_path / "c", space)


def test_the_oldest_spots_go(
    space: KeySpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keynet.cache.store.MOST", 3)
    (tmp_path / "c").mkdir()
    store = EntryStore(tmp_path / "c", [space])
    vector: Any = np.arange(16, dtype=np.float32)
    for number in range(5):
        with store.transaction():
            store.add_spot(Spot(f"place {number}", vector + number, 0.5 + number / 10))
    found = store.spots()
    store.close()
    assert [spot.place for spot in found] == ["place 2", "place 3", "place 4"]
    assert (found[0].vector == vector + 2).all() and found[0].similarity == 0.7
