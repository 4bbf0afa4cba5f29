"""Connected components."""

from __future__ import annotations

from collections.abc import Iterable


def components(count: int, joined: Iterable[tuple[int, int]]) -> list[int]:
    """Return for each of ``count`` nodes the smallest node that it is connected with, or itself.

    Args:
        count: Nodes, numbered from 0.
        joined: Pairs of nodes.
    """
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for one, other in joined:
        first, second = sorted((root(one), root(other)))
        parent[second] = first
    return [root(node) for node in range(count)]
