"""The hashing ops on a CPU: NumPy for keys, faiss for the search.

Searching codes is a read of memory, and faiss reads at its speed. Without it, and for words that
do not lie code by code, NumPy counts bits word by word.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from keynet.hashing.reference import ABSENT, cosine_rerank

__all__ = ["cosine_rerank", "hamming_search", "hash_keys", "nearest"]

CHUNK = 1 << 15  # codes whose distances are in the processor's cache together
FEW_CODES = 20_000  # up to which faiss counts for one query sooner ("mc") than it fills a heap
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
log = logging.getLogger(__name__)


@cache
def faiss() -> Any:
    """Return faiss, or None where it is not installed."""
    try:
        import faiss as module
    except ModuleNotFoundError:
        log.warning("faiss is not installed: codes are searched by NumPy; pip install faiss-cpu")
        return None
    return module


@np.errstate(invalid="ignore", over="ignore")  # a key that has no norm is for the caller to see
def hash_keys(keys: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return codes and norms; see ``reference``."""
    rows = _array(keys if keys.dtype == torch.float32 else keys.float())
    norms = np.sqrt(np.vecdot(rows, rows))
    # W (x / |x|) + b >= 0, without the division
    bits = rows @ _array(weight).T >= _array(bias) * -norms[:, None]
    return torch.from_numpy(np.packbits(bits, axis=1)), torch.from_numpy(norms)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return found


def hamming_search(
    queries: Tensor,
    codes: Tensor,
    k: int,
    radius: int,
    query_scopes: Tensor | None = None,
    code_scopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return distances and indices of the k nearest; see ``reference``."""
    wanted, rows = queries.numpy(), codes.numpy()
    if query_scopes is None and k <= len(rows) and radius >= 32 * rows.shape[1]:
        all_there = nearest(wanted, rows, k)  # nothing is left out
        return torch.from_numpy(all_there[0]), torch.from_numpy(all_there[1])
    absent = 32 * rows.shape[1] + 1
    distance = np.full((len(wanted), k), absent, np.int32)
    index = np.full((len(wanted), k), ABSENT, np.int64)
    if query_scopes is None or code_scopes is None:
        found = nearest(wanted, rows, min(k, len(rows)))
        distance[:, : found[0].shape[1]], index[:, : found[1].shape[1]] = found
    else:
        of_query, of_code = query_scopes.numpy(), code_scopes.numpy()
        for scope in np.unique(of_query):
            asking, there = np.flatnonzero(of_query == scope), np.flatnonzero(of_code == scope)
            found = nearest(wanted[asking], rows[there], min(k, len(there)))
            places = np.ix_(asking, np.arange(found[0].shape[1]))
            distance[places], index[places] = found[0], there[found[1]]
    beyond = distance > radius
    distance[beyond], index[beyond] = absent, ABSENT
    return torch.from_numpy(distance), torch.from_numpy(index)


def nearest(queries: Ints, codes: Ints, k: int) -> tuple[Ints, Longs]:
    """Return distances [Q, k] and indices [Q, k] of the nearest, by distance, then by index.

    Args:
        queries: int32 words [Q, W].
        codes: int32 words [N, W].
        k: At most N.
    """
    if k == 0 or len(queries) == 0:
        return np.empty((len(queries), k), np.int32), np.empty((len(queries), k), np.int64)
    library = faiss() if codes.flags.c_contiguous else None
    if library is None:
        return _counted(queries, codes, k)
    variant = "mc" if len(queries) == 1 and len(codes) <= FEW_CODES else "hc"
    found: tuple[Ints, Longs] = library.knn_hamming(
        np.ascontiguousarray(queries).view(np.uint8), codes.view(np.uint8), k, variant
    )
    return found


def _counted(queries: Ints, codes: Ints, k: int) -> tuple[Ints, Longs]:
    """Search with NumPy alone."""
    distance = np.empty((len(queries), k), np.int32)
    index = np.empty((len(queries), k), np.int64)
    counts = np.empty(len(codes), np.uint16)
    unsigned = codes.view(np.uint32)  # NumPy counts the bits of absolute values
    for row, query in enumerate(queries.view(np.uint32)):
        for first in range(0, len(codes), CHUNK):
            words = unsigned[first : first + CHUNK]
            counts[first : first + CHUNK] = sum(
                np.bitwise_count(words[:, w] ^ query[w]).astype(np.uint16)
                for w in range(codes.shape[1])
            )
        index[row] = _least(counts, k)
        distance[row] = counts[index[row]]
    return distance, index


def _least(counts: NDArray[np.uint16], k: int) -> Longs:
    """Return the places of the k least, ties by place."""
    if k == 1:
        return np.array([counts.argmin()])
    edge = np.partition(counts, k - 1)[k - 1]
    inside = np.flatnonzero(counts <= edge)  # all ties at the edge, in the order of their place
    return inside[np.argsort(counts[inside], kind="stable")[:k]]
