"""A writer that is killed at any moment: what it acknowledged is there, and nothing by half."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from keynet.cache.acceptance import FixedThreshold
from keynet.cache.cache import Hit, SemanticCache
from keynet.cache.key_maker import GivenKeys
from keynet.types import Key, KeySpace

WRITER = """
import importlib.util, sys
from pathlib import Path
from keynet.cache.acceptance import FixedThreshold
from keynet.cache.cache import Miss, SemanticCache
from keynet.cache.key_maker import GivenKeys

spec = importlib.util.spec_from_file_location("conftest", sys.argv[1])
keys = importlib.util.module_from_spec(spec)
spec.loader.exec_module(keys)

options = dict(acceptance=FixedThreshold(1.0), max_entries=200, ttl=1e6)
with SemanticCache(Path(sys.argv[2]), GivenKeys(keys.SPACE), **options) as cache:
    for number in range(int(sys.argv[3]), 10**9):
        entry = cache.insert(Miss(keys.make_key(number), "image+text", ()), {"answer": number} )
        # In one write, so that a line is never half there.
        sys.stdout.write(f"{number} {entry.number}\\n")
        sys.stdout.flush()
        if number % 7 == 0:
            cache.report_false_hit(entry.number)
            sys.stdout.write(f"{number} removed\\n")
            sys.stdout.flush()
        if number % 50 == 0:
            cache.flush()
"""


def killed(folder: Path, first: int, wait: float) -> tuple[list[int], set[int]]:
    """Let a writer run and kill it; return the numbers acknowledged, and those removed again."""
    conftest = Path(__file__).parent / "conftest.py"
    command = [sys.executable, "-c", WRITER, str(conftest), str(folder), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline()]
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        said += process.stdout.readlines()
    words = [line.split() for line in said if line.endswith("\n")]
    removed = {int(number) for number, what in words if what == "removed"}
    return [int(number) for number, what in words if what != "removed"], removed


def run(folder: Path, space: KeySpace, key: Callable[..., Key], kills: int) -> None:
    chance, first, total = random.Random(7), 1, 0
    for _ in range(kills):
        acknowledged, removed = killed(folder, first, chance.random() * 0.4)
        last, total = acknowledged[-1], total + len(acknowledged)
        young = set(acknowledged[-150:])  # the budget of 200 keeps them
        if last % 7 == 0:
            young.discard(last)  # perhaps removed, and killed before it could say so
        with SemanticCache(folder, GivenKeys(space), acceptance=FixedThreshold(1.0)) as cache:
            there = set()
            for number in range(max(1, last - 300), last + 2):  # one more may have been stored
                found = cache.lookup_key(key(number), "image+text")
                if isinstance(found, Hit):
                    there.add(number)
                    assert found.response == {"answer": number}
            assert young - removed <= there and not removed & there
            assert len(cache) == len(cache._entries.store.numbers(space.fingerprint))
            assert len(cache) == cache._entries.count(space.fingerprint)
        first = last + 2
    assert total > 10 * kills


def test_what_was_acknowledged_is_there(
    space: KeySpace, key: Callable[..., Key], tmp_path: Path
) -> None:
    run(tmp_path / "c", space, key, 2)


@pytest.mark.slow
def test_after_fifty_kills_too(space: KeySpace, key: Callable[..., Key], tmp_path: Path) -> None:
    run(tmp_path / "c", space, key, 50)
