"""Codes in inverted lists, for a scope too large to scan whole: faiss's binary IVF.

A search looks into the lists whose centroids are nearest, and so may miss a code. Measured at 1M
codes of 256 bits in groups that lie 4 % apart: with 1,024 lists of which 32 are looked into, .12 ms
instead of 1.4, and the nearest code is found in 100 % of the searches for a stored group, in 84 %
of those for a new one, whose nearest code is 56 bits away and no hit. (8: 100 and 55 %, 64: 93 %.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keynet.hashing.cpu import faiss

NPROBE = 32  # lists that a search looks into
SAMPLES_A_LIST = 40  # codes that a centroid is trained on; faiss asks for 39
AT_ONCE = 1 << 14  # codes added between two looks whether to stop
HASH_NODE = 40  # bytes of a code's place in the direct map

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class StoppedError(Exception):
    """The lists are no longer wanted."""


class InvertedLists:
    """Slots by code, in lists.

    A faiss index that is read while it is written crashes: see ``Guard``.

    Args:
        codes: uint8 [N, K/8], of slots 0 to N.
        stopped: Asked now and then while the lists are built.

    Raises:
        StoppedError: ``stopped`` said so.
    """

    def __init__(self, codes: Bytes, stopped: Callable[[], bool]) -> None:
        library, bits = faiss(), 8 * codes.shape[1]
        lists = num_lists(len(codes))
        self._centroids = library.IndexBinaryFlat(bits)
        self._index = library.IndexBinaryIVF(self._centroids, bits, lists)
        self._index.nprobe = NPROBE
        # Slots change and go: without this map each of them would be looked for in all lists.
        self._index.set_direct_map_type(library.DirectMap.Hashtable)
        chosen = np.random.default_rng(0).permutation(len(codes))[: SAMPLES_A_LIST * lists]
        self._index.train(codes[np.sort(chosen)])
        for first in range(0, len(codes), AT_ONCE):
            if stopped():
                raise StoppedError
            part = codes[first : first + AT_ONCE]
            self._index.add_with_ids(part, np.arange(first, first + len(part)))

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def update(self, touched: Sequence[int] | Longs, slots: Longs, codes: Bytes) -> None:
        """Forget the slots that were touched, and take up those of them that are taken.

        Args:
            touched: Slots that changed, came or went; some may not be here.
            slots: int64 [n], those of them that are taken.
            codes: uint8 [n, K/8], what they hold.
        """
        library = faiss()
        self._index.remove_ids(library.IDSelectorArray(np.asarray(touched, np.int64)))
        if len(slots):
            self._index.add_with_ids(np.ascontiguousarray(codes), slots)

    def search(self, queries: Bytes, k: int) -> tuple[Ints, Longs]:
        """Return distances and slots [Q, k] of the nearest; slot -1 where fewer were found."""
        found: tuple[Ints, Longs] = self._index.search(queries, k)
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of memory, by estimate: codes, slots, and the map from slots to their lists."""
        return len(self) * (int(self._index.code_size) + 8 + HASH_NODE)


def num_lists(count: int) -> int:
    """Return how many lists for so many codes: a power of two, about the square root.

    At 1M that is 1,024, made in 9 s in the background; 2,048 take 28 s and are no better.
    """
    return int(2 ** round(np.log2(max(count, 1)) / 2))


class Guard:
    """Lets in many readers or one writer; a writer who waits goes before new readers."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._change = threading.Condition()
        self._readers = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep writers out."""
        with self._door, self._change:
            self._readers += 1
        try:
            yield
        finally:
            with self._change:
                self._readers -= 1
                self._change.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep all others out."""
        with self._door:
            with self._change:
                while self._readers:
                    self._change.wait()
            yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Let faiss use one thread for what this thread asks of it.

    Queries are parallel to each other, not in themselves: two threads made one slower. OpenMP keeps
    the setting for each thread, so that other threads keep theirs; but torch shares it (one OpenMP
    serves both in a process), so that it is put back, or the next encoding would be as slow.
    """
    library: Any = faiss()
    if library is None:
        yield
        return
    before = library.omp_get_max_threads()
    library.omp_set_num_threads(1)
    try:
        yield
    finally:
        library.omp_set_num_threads(before)
