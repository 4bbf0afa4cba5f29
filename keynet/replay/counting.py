"""How a resource's visits are split over keys, so that counts of keys underrate it (C5)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keynet.replay.neighbours import Ints


class Counting(NamedTuple):
    """What counting keys makes of the most visited resources.

    Args:
        resources: How many were looked at.
        visits: Of them.
        keys: Distinct keys of a resource, the mean.
        underrated: 1 - visits of its most visited key / visits of the resource, over all visits.
        mixed: Share of these visits whose key also counts another resource.
    """

    resources: int
    visits: int
    keys: float
    underrated: float
    mixed: float


def semantic_counting(resource: Ints, key: Ints, most: int = 100) -> Counting:
    """Return what an LFU that counts keys would know of the most visited resources.

    Args:
        resource: int64 [V], group of each visit: what should be counted.
        key: int64 [V], what is counted instead.
        most: Resources looked at, the most visited first.

    Raises:
        ValueError: There is no visit, or not one key a visit.
    """
    if len(resource) != len(key) or not len(key):
        raise ValueError(f"{len(key)} keys for {len(resource)} visits; give one a visit, and one")
    names, visits = np.unique(resource, return_counts=True)
    top = names[np.argsort(-visits, kind="stable")[:most]]
    pairs, counts = np.unique(np.stack([resource, key]), axis=1, return_counts=True)
    owners = np.unique(np.unique(np.stack([key, resource]), axis=1)[0], return_counts=True)
    shared = owners[0][owners[1] > 1]
    total = best = mixed = distinct = 0
    for name in top.tolist():
        mine = pairs[0] == name
        total += int(counts[mine].sum())
        best += int(counts[mine].max())
        distinct += int(mine.sum())
        mixed += int(counts[mine][np.isin(pairs[1][mine], shared)].sum())
    return Counting(len(top), total, distinct / len(top), 1 - best / total, mixed / total)
