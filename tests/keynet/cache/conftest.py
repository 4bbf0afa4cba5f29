"""Keys and requests, each made from a number alone; what an index of them holds; a clock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keynet.cache.acceptance import FixedThreshold
from keynet.cache.cache import Entry, SemanticCache
from keynet.cache.index import CodeIndex
from keynet.types import Key, KeySpace, Request

SPACE = KeySpace("toy", 1, 16, 64, "f00d")


def make_key(number: int, scope: int = 0, space: KeySpace = SPACE) -> Key:
    """The key of a number, in a numbered scope."""
    random = np.random.default_rng(number)
    vector = random.standard_normal(space.dim).astype(np.float32)
    code = random.integers(0, 256, space.bits // 8, dtype=np.uint8)
    digest = hashlib.sha256(str(scope).encode()).hexdigest()[:32]
    return Key(space, vector / np.linalg.norm(vector), code, None, digest)


class Numbered:
    """Makes the key of a number that is the request's text, in the scope that is its tenant."""

    def __init__(self, space: KeySpace) -> None:
        self.space = space

    def encode(self, requests: Request) -> Key:
        assert requests.text is not None
        return make_key(int(requests.text), requests.scope.get("tenant", 0), self.space)

    def opened(self, folder: Path | None, **options: Any) -> SemanticCache:
        return SemanticCache(folder, self, acceptance=FixedThreshold(0.99), **options)

    def request(self, number: int, **scope: Any) -> Request:
        return Request(text=str(number), scope=scope)

    def stored(
        self, cache: SemanticCache, number: int, response: Any = None, **scope: Any
    ) -> Entry:
        entry = cache.insert(self.request(number, **scope), response or f"answer {number}")
        assert entry is not None
        return entry


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def content_of(index: CodeIndex) -> dict[int, tuple[str, bytes, bytes]]:
    """Every entry with its scope, code and vector, from the arrays themselves."""
    found = {}
    for digest, scope in index._scopes.items():
        slots = scope.codes._slots
        for slot in range(slots.count):
            row = digest, slots.codes[slot].tobytes(), slots.vectors[slot].tobytes()
            found[int(slots.ids[slot])] = row
    assert len(found) == len(index)
    return found


def content_of_folder(folder: Path) -> dict[int, tuple[str, bytes, bytes]]:
    """The same, of an index that is opened for it."""
    with CodeIndex(SPACE, folder) as index:
        return content_of(index)


def fill(folder: Path, count: int = 20) -> dict[int, tuple[str, bytes, bytes]]:
    """Make an index of so many entries in three scopes; return what it holds."""
    with CodeIndex(SPACE, folder) as index:
        index.insert_many(range(count), [make_key(n, n % 3) for n in range(count)])
        return content_of(index)


@pytest.fixture(scope="session")
def space() -> KeySpace:
    return SPACE


@pytest.fixture(scope="session")
def key() -> Callable[..., Key]:
    return make_key


@pytest.fixture(scope="session")
def maker() -> Numbered:
    return Numbered(SPACE)


@pytest.fixture(scope="session")
def new_clock() -> type[Clock]:
    return Clock


@pytest.fixture(scope="session")
def content() -> Callable[[CodeIndex], dict]:
    return content_of


@pytest.fixture(scope="session")
def reopened() -> Callable[[Path], dict]:
    return content_of_folder


@pytest.fixture(scope="session")
def filled() -> Callable[..., dict]:
    return fill
