"""A plain key trace under a replacement policy: an object is found or it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keynet.cache.policies.policy import Policy, Stored, check_capacity


@dataclass(frozen=True)
class PolicyReplay:
    """What became of each request, in order.

    Args:
        hit: bool [V], whether the object was found.
        size: int64 [V], in the unit of the capacity.
    """

    hit: NDArray[np.bool_]
    size: NDArray[np.int64]

    @property
    def hits(self) -> int:
        return int(self.hit.sum())

    @property
    def hit_rate(self) -> float:
        """Share of the requests that were hits; 0 without any."""
        return self.hits / max(1, len(self.hit))

    @property
    def size_hit(self) -> int:
        return int(self.size[self.hit].sum())

    @property
    def size_hit_rate(self) -> float:
        """Share of the size that was asked for and found; 0 without any."""
        return self.size_hit / max(1, int(self.size.sum()))


def replay_policy(
    policy: Policy,
    capacity: int,
    objects: Sequence[int] | NDArray[np.integer],
    sizes: Sequence[int] | NDArray[np.integer] | None = None,
    vectors: NDArray[np.float32] | None = None,
) -> PolicyReplay:
    """Ask for objects in order; a miss stores the object, unless it is larger than the capacity.

    Args:
        policy: An empty one of that capacity.
        capacity: Entries, or bytes.
        objects: [V], equal = the same object.
        sizes: [V], 1 or more; None is 1 each. What is stored keeps its size until it has gone.
        vectors: Unit rows [N, D] of objects 0 to N - 1, for policies that go by similarity.

    Raises:
        PolicyError: The capacity is none, or the policy goes by similarity and there is none.
        ValueError: The sizes or the vectors do not fit the objects, or a size is less than 1.
    """
    check_capacity(capacity)
    asked = np.asarray(objects)
    size = np.ones(len(asked), np.int64) if sizes is None else np.asarray(sizes, np.int64)
    if asked.ndim != 1 or asked.shape != size.shape:
        raise ValueError(f"{size.shape} sizes for {asked.shape} objects; give one each, in a row")
    if len(size) and size.min() < 1:
        at = int(np.argmin(size))
        raise ValueError(f"size {at} is {size[at]}; expected 1 or more")
    if vectors is not None and len(asked) and not 0 <= asked.min() <= asked.max() < len(vectors):
        raise ValueError(
            f"objects are {asked.min()} to {asked.max()} and there are {len(vectors)} vectors; "
            "number the objects from 0 and give a vector each"
        )
    hit = _replay(policy, capacity, asked.tolist(), size.tolist(), vectors)
    return PolicyReplay(np.array(hit, dtype=np.bool_), size)


def _replay(
    policy: Policy,
    capacity: int,
    objects: list[int],
    sizes: list[int],
    vectors: NDArray[np.float32] | None,
) -> list[bool]:
    on_hit, on_miss, on_insert = policy.on_hit, policy.on_miss, policy.on_insert
    entry_of: dict[int, int] = {}
    held: dict[int, tuple[int, int]] = {}  # object and size by entry
    room = capacity
    hits = []
    for number, (asked, size) in enumerate(zip(objects, sizes, strict=True)):
        entry = entry_of.get(asked)
        hits.append(entry is not None)
        if entry is not None:
            on_hit(entry)
        elif size <= capacity:
            vector = None if vectors is None else vectors[asked]
            incoming = Stored(number, asked, size, vector=vector)
            on_miss(incoming)
            while room < size:
                gone, freed = held.pop(policy.victim())
                del entry_of[gone]
                room += freed
            entry_of[asked], held[number] = number, (asked, size)
            room -= size
            on_insert(incoming)
    return hits
