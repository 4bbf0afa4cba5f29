"""Traces, entries with a meaning, and a policy that must agree with a plain model of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from keynet.cache.policies.policy import Policy, Stored
from keynet.replay.policy_replay import replay_policy

TRACE = Path(__file__).parents[4].parent / "shared/data/traces/cloudPhysicsIO.oracleGeneral.bin"
DIM = 8


def zipf_trace(visits: int, objects: int, exponent: float = 1.0, seed: int = 0) -> np.ndarray:
    weight = (1.0 + np.arange(objects)) ** -exponent
    return np.random.default_rng(seed).choice(objects, visits, p=weight / weight.sum())


def make_stored(entry: int, what: int, size: int = 1, scope: str = "") -> Stored:
    """An entry for a numbered object, whose size is given and whose vector is its own."""
    rng = np.random.default_rng(what)
    vector = rng.standard_normal(DIM).astype(np.float32)
    alignment = None if what % 5 == 0 else float(rng.uniform(-1, 1))
    unit = vector / np.linalg.norm(vector)
    return Stored(entry, f"object {what}", size, 1.0 + what % 3, alignment, unit, scope)


class Model:
    """Entries by what a plain model knows of them; the least by ``rank`` goes."""

    def __init__(self, rank: Callable[[Model, int], tuple]) -> None:
        self.rank, self.tick = rank, 0
        self.stored: dict[int, Stored] = {}
        self.times: dict[int, list[int]] = {}

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        self.tick += 1
        self.times[entry].append(self.tick)

    def on_miss(self, incoming: Stored) -> None:
        pass

    def on_insert(self, stored: Stored) -> None:
        self.tick += 1
        self.stored[stored.entry], self.times[stored.entry] = stored, [self.tick]

    def on_remove(self, entry: int) -> None:
        del self.stored[entry], self.times[entry]

    def victim(self) -> int:
        entry = min(self.stored, key=lambda one: self.rank(self, one))
        self.gone(entry)
        self.on_remove(entry)
        return entry

    def gone(self, entry: int) -> None:
        pass


def replayed(policy: Policy, capacity: int, trace: np.ndarray, sizes: object = None) -> np.ndarray:
    return replay_policy(policy, capacity, trace, sizes).hit


@pytest.fixture(scope="session")
def zipf() -> Callable[..., np.ndarray]:
    return zipf_trace


@pytest.fixture(scope="session")
def stored() -> Callable[..., Stored]:
    return make_stored


@pytest.fixture(scope="session")
def model() -> type[Model]:
    return Model


@pytest.fixture(scope="session")
def hits() -> Callable[..., np.ndarray]:
    return replayed


@pytest.fixture(scope="session")
def real() -> tuple[np.ndarray, np.ndarray]:
    """Objects of a public block trace, numbered from 0, and the size that each came with first."""
    if not TRACE.is_file():
        pytest.skip("the block trace is not at ../shared/data/traces")
    kind = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    rows = np.fromfile(TRACE, kind)
    _, first, objects = np.unique(rows["object"], return_index=True, return_inverse=True)
    return objects, np.maximum(1, rows["size"][first].astype(np.int64))[objects]
