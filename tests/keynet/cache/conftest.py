"""Keys of a small key space, each made from a number alone, and what an index of them holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from keynet.cache.index import CodeIndex
from keynet.types import Key, KeySpace

SPACE = KeySpace("toy", 1, 16, 64, "f00d")


def make_key(number: int, scope: int = 0, space: KeySpace = SPACE) -> Key:
    """The key of a number, in a numbered scope."""
    random = np.random.default_rng(number)
    vector = random.standard_normal(space.dim).astype(np.float32)
    code = random.integers(0, 256, space.bits // 8, dtype=np.uint8)
    digest = hashlib.sha256(str(scope).encode()).hexdigest()[:32]
    return Key(space, vector / np.linalg.norm(vector), code, None, digest)


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
def content() -> Callable[[CodeIndex], dict]:
    return content_of


@pytest.fixture(scope="session")
def reopened() -> Callable[[Path], dict]:
    return content_of_folder


@pytest.fixture(scope="session")
def filled() -> Callable[..., dict]:
    return fill
