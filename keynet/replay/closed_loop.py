"""The plain nearest-key cache in closed loop: a miss inserts, a hit inserts nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from keynet.cache.threshold import Counts
from keynet.replay.neighbours import Floats, Ints, Neighbours

MISS, HIT, FALSE_HIT = 0, 1, 2


@dataclass(frozen=True)
class ReplayResult:
    """What became of each visit, in order.

    Args:
        order: int64 [V], visited request.
        outcome: int8 [V], 0 miss, 1 hit, 2 false hit.
        served: int64 [V], request whose response was served; -1 at a miss.
        similarity: float32 [V], to the served request; NaN at a miss.
        oracle: bool [V], whether a cache that knows the groups would have hit.
    """

    order: Ints
    outcome: NDArray[np.int8]
    served: Ints
    similarity: Floats
    oracle: NDArray[np.bool_]

    @property
    def hits(self) -> int:
        return int((self.outcome == HIT).sum())

    @property
    def false_hits(self) -> int:
        return int((self.outcome == FALSE_HIT).sum())

    @property
    def num_served(self) -> int:
        return self.hits + self.false_hits

    @property
    def oracle_hits(self) -> int:
        return int(self.oracle.sum())


def replay(
    keys: Floats | Neighbours,
    group: Ints,
    order: Ints,
    threshold: float | None,
    scope: NDArray[np.generic] | None = None,
) -> ReplayResult:
    """Visit requests in order with an empty cache that serves its nearest key from a threshold on.

    Of equally near keys the earliest stored is served. The result is exact: each insertion tells
    all requests within ``threshold`` of it, so a visit looks at one number.

    Args:
        keys: Unit rows [N, D], or their ``Neighbours`` (made with the scope).
        group: int64 [N], equal = equivalent.
        order: int64 [V], requests as visited; a request visited again is a verbatim repeat.
        threshold: Similarity; None never serves.
        scope: [N], requests of different scope never meet; only with a key matrix.
    """
    if isinstance(keys, Neighbours):
        if scope is not None:
            raise ValueError("scope given beside Neighbours; give it to Neighbours.of")
        neighbours = keys
    else:
        neighbours = Neighbours.of(keys, scope)
    order = np.asarray(order, dtype=np.int64)
    if len(group) != len(neighbours.node):
        raise ValueError(f"{len(group)} groups for {len(neighbours.node)} keys; give one a key")
    served = np.full(len(order), -1, dtype=np.int64)
    similarity = np.full(len(order), np.nan, dtype=np.float32)
    if threshold is not None:
        source, best = _visit(neighbours, order, threshold)
        served[:] = source
        similarity[:] = best
    equivalent = group[order] == group[served]
    outcome = np.where(served < 0, MISS, np.where(equivalent, HIT, FALSE_HIT)).astype(np.int8)
    where = neighbours.scope[np.asarray(neighbours.node)[order]] if len(order) else order
    return ReplayResult(order, outcome, served, similarity, seen_before(group[order], where))


def count_served(
    neighbours: Neighbours, group: Ints, question: Ints, order: Ints, threshold: float
) -> Counts:
    """Count what ``replay`` would serve, which is all that a calibration asks for.

    Args:
        question: int64 [N], equal = the same question about the same thing.
    """
    source = np.array(_visit(neighbours, order, threshold)[0], dtype=np.int64)
    hit = source >= 0
    at = order[hit]
    false_hits = int((group[at] != group[source[hit]]).sum())
    return Counts(len(at), false_hits, len(np.unique(question[at])))


def _visit(neighbours: Neighbours, order: Ints, threshold: float) -> tuple[list[int], list[float]]:
    near, near_similarity = neighbours.near, neighbours.near_similarity
    node, truncated = neighbours.node, neighbours.truncated
    # Per node the stored request nearest to it, and how near: one at a time through a view, which
    # is as quick as a list, whole rows through the array.
    sources, bests = np.full(len(near), -1), np.full(len(near), -np.inf)
    source, best = sources.data, bests.data
    served, similarity = [], []
    for request in order.tolist():
        at = node[request]
        served.append(source[at])
        if source[at] >= 0:
            similarity.append(best[at])
            continue
        similarity.append(float("nan"))
        for other, sim in zip(near[at], near_similarity[at], strict=True):
            if sim < threshold:
                break
            if sim > best[other]:
                best[other] = sim
                source[other] = request
        else:
            if truncated[at]:
                others, sims = neighbours.row(at, threshold)
                nearer = sims > bests[others]
                bests[others[nearer]] = sims[nearer]
                sources[others[nearer]] = request
    return served, similarity


def seen_before(group: Ints, scope: Ints) -> NDArray[np.bool_]:
    """Whether each visit's group has been visited before in its scope."""
    seen = np.ones(len(group), dtype=bool)
    if len(group):
        seen[np.unique(np.stack([group, scope]), axis=1, return_index=True)[1]] = False
    return seen
