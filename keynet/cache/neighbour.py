"""What a search of an index finds, ranked by the cosine of the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keynet.cache.scope_codes import Found


class Neighbour(NamedTuple):
    """A stored entry near a key.

    Args:
        entry: As it was inserted.
        distance: Differing bits of the codes.
        cosine: Of the vectors, the stored one in half precision.
    """

    entry: int
    distance: int
    cosine: float


def ranked(
    vector: NDArray[np.float32], parts: Sequence[Found], k: int, radius: int, num_candidates: int
) -> list[Neighbour]:
    """Return the k best of one query's candidates, found in one scope or more."""
    found = parts[0]
    if len(parts) > 1:
        found = Found(*map(np.concatenate, zip(*parts, strict=True)))
        # An entry that was moved to another scope meanwhile may have been found in both.
        kept = np.sort(np.unique(found.entries, return_index=True)[1])
        kept = kept[np.argsort(found.distances[kept], kind="stable")[:num_candidates]]
        found = found.at(kept)
    distances, entries, halves = found.at(found.distances <= radius)
    vectors = halves.astype(np.float32)
    # Row by row: a matrix product rounds equal rows differently, and ties are broken by entry.
    norms = np.sqrt(np.vecdot(vectors, vectors) * np.vecdot(vector, vector))
    cosines = np.vecdot(vectors, vector) / norms
    best = np.lexsort((entries, -cosines))[:k]
    columns = (column[best].tolist() for column in (entries, distances, cosines))
    return [Neighbour(*row) for row in zip(*columns, strict=True)]
