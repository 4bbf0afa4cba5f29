"""Which requests of a pool are near which, computed once for hundreds of replays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# Similarities are summed in float64 and rounded to this step. Otherwise the order of additions
# inside BLAS, which changes with shapes and threads, would decide whether two equally distant codes
# tie, and equal keys would not meet at exactly 1.
STEP = 2.0**-20
ROW_CACHE_BYTES = 256 * 2**20
BLOCK_ELEMENTS = 2**22
CANDIDATE_QUERIES = 4000

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


def similarities(a: Floats | Doubles, b: Floats | Doubles) -> Floats:
    """Inner products [A, B] of rows of ``a`` [A, D] and ``b`` [B, D], rounded to ``STEP``."""
    product = a.astype(np.float64, copy=False) @ b.astype(np.float64, copy=False).T
    product /= STEP
    np.rint(product, out=product)
    product *= STEP
    return product.astype(np.float32)


@dataclass(frozen=True)
class Neighbours:
    """Nearest neighbours within a pool of N requests, over its U distinct keys ("nodes").

    Requests with equal key and scope share a node. A node's list holds its most similar nodes of
    the same scope, itself included; ``row`` gives all of them when the list ends too early.

    Args:
        node: int64 [N], node of each request.
        keys: float32 [U, D].
        scope: int64 [U].
        near: Per node the most similar nodes, most similar first.
        near_similarity: The same, their similarities.
        truncated: Per node whether the scope has more nodes than the list.
    """

    node: list[int]
    keys: Floats
    scope: Ints
    near: list[list[int]]
    near_similarity: list[list[float]]
    truncated: list[bool]
    _members: dict[int, Ints] = field(repr=False)
    _rows: dict[int, Floats] = field(default_factory=dict, repr=False)
    _doubles: dict[int, Doubles] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(keys: Floats, scope: NDArray[np.generic] | None = None, length: int = 96) -> Neighbours:
        """Neighbours of the rows of ``keys`` [N, D] (unit norm); scopes [N] never meet.

        Raises:
            ValueError: When keys are not finite, or their norm is not 1.
        """
        keys = check_keys(keys)
        count = len(keys)
        scope = np.zeros(count, dtype=np.int64) if scope is None else scope
        if len(scope) != count:
            raise ValueError(f"{len(scope)} scopes for {count} keys; give one scope a key")
        scope_id = np.unique(scope, return_inverse=True)[1].astype(np.int64)
        seen: dict[tuple[int, bytes], int] = {}
        node: list[int] = []
        first: list[int] = []
        for index, where in enumerate(scope_id.tolist()):
            identity = (where, keys[index].tobytes())
            if identity not in seen:
                seen[identity] = len(first)
                first.append(index)
            node.append(seen[identity])
        distinct = keys[first]
        node_scope = scope_id[first]
        members = {int(s): np.flatnonzero(node_scope == s) for s in np.unique(node_scope)}
        near: list[list[int]] = [[] for _ in first]
        near_similarity: list[list[float]] = [[] for _ in first]
        truncated = [False] * len(first)
        for inside in members.values():
            listed = min(length, len(inside))
            block = max(1, BLOCK_ELEMENTS // len(inside))
            pool = distinct[inside]
            for start in range(0, len(inside), block):
                rows = inside[start : start + block]
                sims = similarities(distinct[rows], pool)
                if listed < len(inside):
                    top = np.argpartition(sims, -listed, axis=1)[:, -listed:]
                    values = np.take_along_axis(sims, top, axis=1)
                else:
                    top = np.broadcast_to(np.arange(listed), sims.shape)
                    values = sims
                by_similarity = np.argsort(-values, axis=1, kind="stable")
                ids = inside[np.take_along_axis(top, by_similarity, axis=1)].tolist()
                ranked = np.take_along_axis(values, by_similarity, axis=1).tolist()
                for at, row in enumerate(rows.tolist()):
                    near[row], near_similarity[row] = ids[at], ranked[at]
                    truncated[row] = listed < len(inside)
        return Neighbours(node, distinct, node_scope, near, near_similarity, truncated, members)

    def row(self, node: int, threshold: float) -> tuple[Ints, Floats]:
        """All nodes at least ``threshold`` similar to ``node``, and their similarities."""
        scope = int(self.scope[node])
        inside = self._members[scope]
        sims = self._rows.get(node)
        if sims is None:
            if scope not in self._doubles:  # made once: of many keys it takes most of the time
                self._doubles[scope] = self.keys[inside].astype(np.float64)
            sims = similarities(self.keys[node : node + 1], self._doubles[scope])[0]
            if (len(self._rows) + 1) * sims.nbytes <= ROW_CACHE_BYTES:
                self._rows[node] = sims
        found = np.flatnonzero(sims.astype(np.float64) >= threshold)
        return inside[found], sims[found]

    def candidates(
        self, group: NDArray[np.generic], index: Ints | None = None, count: int = 60
    ) -> NDArray[np.float64]:
        """About ``count`` thresholds worth trying for requests ``index``, descending.

        Two thirds are upper quantiles of the similarity to the nearest request of another group
        (there false hits begin), the rest quantiles of the similarity to the nearest request, both
        over evenly spaced requests where there are more than a few thousand.
        """
        index = np.arange(len(self.node)) if index is None else index
        if not len(index):
            return np.zeros(0)
        group, node = np.asarray(group), np.asarray(self.node)
        keys, scope = self.keys[node[index]], self.scope[node[index]]
        asked = np.arange(0, len(index), -(-len(index) // CANDIDATE_QUERIES))
        nearest, wrong = [], []
        block = max(1, BLOCK_ELEMENTS // len(index))
        for rows in np.split(asked, range(block, len(asked), block)):
            sims = similarities(keys[rows], keys)
            sims[scope[rows, None] != scope[None]] = -np.inf
            sims[np.arange(len(rows)), rows] = -np.inf
            nearest.append(sims.max(axis=1))
            sims[group[index[rows], None] == group[None, index]] = -np.inf
            wrong.append(sims.max(axis=1))
        to_any, to_wrong = (np.concatenate(part) for part in (nearest, wrong))
        to_any, to_wrong = to_any[np.isfinite(to_any)], to_wrong[np.isfinite(to_wrong)]
        if not len(to_any) or not len(to_wrong):
            return np.unique(to_any)[::-1].astype(np.float64)
        # The tail in even steps of its logarithm: budgets are shares of 0.1 to 5 %.
        tail = np.quantile(to_wrong, 1 - np.geomspace(5e-4, 0.95, 2 * count // 3))
        body = np.quantile(to_any, np.linspace(0, 1, count - 2 * count // 3))
        return np.unique(np.concatenate([tail, body]))[::-1].astype(np.float64)


def check_keys(keys: Floats) -> Floats:
    """``keys`` as contiguous float32 [N, D]; raises ValueError unless all rows have norm 1."""
    keys = np.ascontiguousarray(keys, dtype=np.float32)
    if keys.ndim != 2 or not keys.size:
        raise ValueError(f"keys have shape {keys.shape}; give a non-empty matrix [N, D]")
    norm = np.sqrt(np.einsum("nd,nd->n", keys, keys))
    wrong = ~(np.abs(norm - 1) < 1e-3)  # catches NaN as well
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(f"key {at} has norm {norm[at]:.4g}; give finite rows of norm 1")
    return keys
