"""Neighbourhoods of false hits, in which a request must be nearer than elsewhere to be served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 1024  # in all; the oldest goes


class Spots:
    """Where false hits were reported, each a request's vector and how similar the wrong entry was.

    A request of the same scope that is as near to the spot as the wrong entry was needs a
    similarity above that: the entry that is served must be nearer to it than the wrong one was.
    """

    def __init__(self) -> None:
        self._spots: list[tuple[str, NDArray[np.float32], float]] = []
        self._scopes: set[str] = set()

    def __len__(self) -> int:
        return len(self._spots)

    def add(self, digest: str, vector: NDArray[np.float32], similarity: float) -> None:
        """Remember a false hit.

        Args:
            digest: Of the scope, as it is looked up.
            vector: float32 [D], the request's.
            similarity: Of the entry that was wrong.
        """
        self._spots.append((digest, vector, similarity))
        del self._spots[:-MOST]
        self._scopes = {scope for scope, _, _ in self._spots}

    def floor(self, digest: str, vector: NDArray[np.float32]) -> float:
        """Return the similarity that a request's entry must exceed; -inf where nothing was wrong.

        Args:
            digest: Of the scope, as it is looked up.
            vector: float32 [D], the request's.
        """
        if digest not in self._scopes:
            return -np.inf
        inside = (
            similarity
            for scope, centre, similarity in self._spots
            if scope == digest
            and centre.shape == vector.shape
            and float(centre @ vector) >= similarity
        )
        return max(inside, default=-np.inf)

    def state(self) -> list[list[Any]]:
        """Return all as JSON can hold them."""
        return [[scope, v.tobytes().hex(), similarity] for scope, v, similarity in self._spots]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Take those of a state."""
        for scope, content, similarity in state:
            self.add(scope, np.frombuffer(bytes.fromhex(content), np.float32), similarity)
