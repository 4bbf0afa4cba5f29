"""Neighbourhoods of false hits, in which a request must be nearer than elsewhere to be served."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST = 1024  # in all; the oldest goes
ROUNDING = 1e-6  # of a cosine; a request is in its own neighbourhood whatever its norm came to


class Spot(NamedTuple):
    """A false hit.

    Args:
        place: Key space and scope, as it is looked up.
        vector: float32 [D], the request's.
        similarity: Of the entry that was wrong.
    """

    place: str
    vector: NDArray[np.float32]
    similarity: float


class Spots:
    """Where false hits were reported.

    A request of the same place that is as near to a spot as the wrong entry was needs a similarity
    above that: the entry that is served must be nearer to it than the wrong one was.

    Args:
        spots: Known ones, the oldest first.
    """

    def __init__(self, spots: Iterable[Spot] = ()) -> None:
        self._order = deque[str]()
        self._places: dict[str, tuple[NDArray[np.float32], NDArray[np.float64]]] = {}
        for spot in spots:
            self.add(spot)

    def __len__(self) -> int:
        return len(self._order)

    def add(self, spot: Spot) -> None:
        """Remember a false hit."""
        vectors, similarities = spot.vector[None], np.array([spot.similarity])
        there = self._places.get(spot.place)
        if there is not None:
            vectors = np.concatenate([there[0], vectors])
            similarities = np.concatenate([there[1], similarities])
        self._places[spot.place] = vectors, similarities
        self._order.append(spot.place)
        if len(self._order) > MOST:
            oldest = self._order.popleft()
            vectors, similarities = self._places.pop(oldest)
            if len(vectors) > 1:
                self._places[oldest] = vectors[1:], similarities[1:]

    def floor(self, place: str, vector: NDArray[np.float32]) -> float:
        """Return the similarity that a request's entry must exceed; -inf where nothing was wrong.

        Args:
            place: Key space and scope, as it is looked up.
            vector: float32 [D], the request's.
        """
        there = self._places.get(place)
        if there is None:
            return -np.inf
        vectors, similarities = there
        inside = similarities[vectors @ vector >= similarities - ROUNDING]
        return float(inside.max(initial=-np.inf))
