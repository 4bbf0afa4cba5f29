"""Many threads on one cache: nothing is lost, and no scope sees another's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keynet.cache.acceptance import FixedThreshold
from keynet.cache.cache import Hit, SemanticCache
from keynet.types import Key, Request

SCOPES = 3


def hammer(cache: SemanticCache, threads: int, seconds: float) -> dict[tuple[int, int], str]:
    """Insert, look up, remove and raise versions from many threads; return what must be there."""
    ends = time.monotonic() + seconds
    wrong: list[object] = []
    kept: dict[tuple[int, int], str] = {}

    def request(number: int, tenant: int) -> Request:
        # The device of the last tenant alone has its version raised meanwhile.
        return Request(text=str(number), scope={"tenant": tenant, "device": str(tenant)})

    def work(me: int) -> None:
        number = me + threads * SCOPES
        try:
            while time.monotonic() < ends:
                number += threads  # each thread stores numbers of its own
                tenant = number % SCOPES
                answer = f"{number} of {tenant}"
                entry = cache.insert(cache.lookup(request(number, tenant)), answer)  # type: ignore[arg-type]
                if tenant == SCOPES - 1:
                    if number % 5 == 0:
                        cache.raise_version("device", str(tenant), sweep=number % 2 == 0)
                    continue
                if number % 11 == 0 and entry is not None:
                    cache.report_false_hit(entry.number)
                else:
                    kept[number, tenant] = answer
                for other in range(SCOPES):
                    back = number - threads * (other + 1)
                    found = cache.lookup(request(back, other))
                    if isinstance(found, Hit) and found.response != f"{back} of {other}":
                        wrong.append((back, other, found.response))
        except BaseException as error:
            wrong.append(error)
            raise

    crew = [threading.Thread(target=work, args=(me,)) for me in range(threads)]
    for one in crew:
        one.start()
    for one in crew:
        one.join()
    assert not wrong, wrong[:3]
    for (number, tenant), answer in kept.items():
        found = cache.lookup(request(number, tenant))
        assert isinstance(found, Hit) and found.response == answer
    return kept


def run(maker: Any, key: Callable[..., Key], folder: Path, seconds: float) -> None:
    def opened() -> SemanticCache:
        return SemanticCache(folder, maker, acceptance=FixedThreshold(1.0))

    with opened() as cache:
        kept = hammer(cache, 8, seconds)
        held = len(cache)
    assert len(kept) > 20
    with opened() as cache:
        assert len(cache) == held == cache._entries.count(maker.space.fingerprint)
        for number, tenant in kept:
            assert isinstance(cache.lookup_key(key(number, tenant), "text"), Hit)


def test_eight_threads(maker: Any, key: Callable[..., Key], tmp_path: Path) -> None:
    run(maker, key, tmp_path / "c", 2.0)


@pytest.mark.slow
def test_eight_threads_for_a_minute(maker: Any, key: Callable[..., Key], tmp_path: Path) -> None:
    run(maker, key, tmp_path / "c", 60.0)
