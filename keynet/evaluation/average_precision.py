"""Mean average precision where many distances tie, as those of codes do.

Sorting would rank ties by how the database happens to be stored. Here a query's average precision
is its expectation over all orders of its ties, in closed form, so that it is one number.

Source: McSherry and Najork, Computing Information Retrieval Performance Measures Efficiently in the
Presence of Tied Scores, ECIR 2008. They sum precision over the tie position by position; here with
harmonic numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from keynet.cache.modality_distance import hamming

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]
Mask = NDArray[np.bool_]

CHUNK_ELEMENTS = 2**22


def average_precision(distances: Ints, relevant: Mask, cutoff: int | None = None) -> Floats:
    """Return the expected average precision [Q] of each query; NaN without a relevant row.

    The sum of the precisions at the relevant among the first ``cutoff``, over as many relevant as
    could be there: min(cutoff, all relevant). The hashing literature often divides by those found
    there, which a query that finds one of a hundred at once answers with 1.

    Args:
        distances: Integers [Q, N]; smaller is nearer, equal is a tie.
        relevant: [Q, N].
        cutoff: Ranks that count; None for all.

    Raises:
        ValueError: When distances are no integers, shapes differ, or the cut-off is below 1.
    """
    distances, relevant = np.asarray(distances), np.asarray(relevant, dtype=bool)
    if not np.issubdtype(distances.dtype, np.integer):
        raise ValueError(
            f"distances are {distances.dtype}, expected integers: whether floats tie is decided by "
            "their rounding; round them to steps first"
        )
    if distances.ndim != 2 or distances.shape != relevant.shape:
        raise ValueError(
            f"distances {distances.shape} and relevant {relevant.shape} differ; give both [Q, N]"
        )
    _check_cutoff(cutoff)
    step = max(1, CHUNK_ELEMENTS // max(distances.shape[1], 1))
    parts = [
        _of_chunk(distances[first : first + step], relevant[first : first + step], cutoff)
        for first in range(0, len(distances), step)
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def mean_average_precision(
    query: NDArray[np.uint8],
    codes: NDArray[np.uint8],
    query_group: Ints,
    group: Ints,
    cutoffs: Sequence[int | None] = (None,),
) -> list[float]:
    """Return the mean over queries at each cut-off, by Hamming distance of packed codes.

    Args:
        query: Codes [Q, B].
        codes: The database [N, B].
        query_group: [Q].
        group: [N]; equal to the query's is relevant.
        cutoffs: Of ``average_precision``.

    Raises:
        ValueError: When lengths differ, or no query has anything relevant; those without are left
            out of the mean.
    """
    for name, rows, labels in (("query", query, query_group), ("database", codes, group)):
        if len(rows) != len(labels):
            raise ValueError(f"{len(labels)} groups for {len(rows)} codes of the {name}")
    for cutoff in cutoffs:
        _check_cutoff(cutoff)
    step = max(1, CHUNK_ELEMENTS // max(len(codes), 1))
    found: list[list[Floats]] = [[] for _ in cutoffs]
    for first in range(0, len(query), step):
        last = first + step
        distances = hamming(query[first:last], codes)
        relevant = query_group[first:last, None] == group[None]
        for place, cutoff in zip(found, cutoffs, strict=True):
            place.append(average_precision(distances, relevant, cutoff))
    each = [np.concatenate(parts) if parts else np.zeros(0) for parts in found]
    if each and not np.isfinite(each[0]).any():
        raise ValueError(
            f"none of {len(query)} queries has a relevant code in the database; ask queries whose "
            "group is stored"
        )
    return [float(np.nanmean(precisions)) for precisions in each]


def _of_chunk(distances: Ints, relevant: Mask, cutoff: int | None) -> Floats:
    queries, count = distances.shape
    if not count:
        return np.full(queries, np.nan)
    order = np.argsort(distances, axis=1, kind="stable")
    ranked = np.take_along_axis(distances, order, axis=1)
    level = np.zeros(ranked.shape, dtype=np.int64)  # of the tie, counted along each row
    np.cumsum(ranked[:, 1:] != ranked[:, :-1], axis=1, out=level[:, 1:])
    levels = int(level[:, -1].max()) + 1
    cell = level + np.arange(queries)[:, None] * levels
    hits = np.take_along_axis(relevant, order, axis=1)
    shape, cells = (queries, levels), queries * levels
    tied = np.bincount(cell.ravel(), minlength=cells).reshape(shape)
    right = np.bincount(cell[hits], minlength=cells).reshape(shape)
    before = tied.cumsum(1) - tied
    right_before = right.cumsum(1) - right
    last = count if cutoff is None else min(cutoff, count)
    counted = np.clip(last - before, 0, tied)  # ranks of each tie that count
    # With n tied and r of them relevant after N with R, the i-th of the tie is relevant with
    # chance r / n, and then R + 1 + (i - 1)(r - 1) / (n - 1) of N + i are, in expectation. Over
    # i = 1..m, 1 / (N + i) sums to a difference of harmonic numbers H, (i - 1) / (N + i) to
    # m - (N + 1) H.
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, count + 1))])
    inverse = harmonic[before + counted] - harmonic[before]
    slope = (right - 1) / np.maximum(tied - 1, 1)
    precisions = (right_before + 1) * inverse + slope * (counted - (before + 1) * inverse)
    total = (right / np.maximum(tied, 1) * precisions).sum(1)
    possible = np.minimum(relevant.sum(1), last)
    return np.where(possible > 0, total / np.maximum(possible, 1), np.nan)


def _check_cutoff(cutoff: int | None) -> None:
    if cutoff is not None and cutoff < 1:
        raise ValueError(f"cut-off is {cutoff}; give at least 1, or None for all ranks")
