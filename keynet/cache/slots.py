"""Preallocated slots for the codes, vectors and entry ids of one scope."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GROWTH = 1.5
WHOLE = 1 << 17  # bytes; a smaller array takes all its memory at once, a larger one page by page

Bytes = NDArray[np.uint8]
Halves = NDArray[np.float16]
Longs = NDArray[np.int64]


class Slots:
    """Growing arrays: ``codes`` uint8 [capacity, K/8], ``vectors`` float16 [capacity, D], ``ids``.

    Slots 0 to ``count`` are taken. A reader who copied (``codes``, ``count``, ``changes``) may scan
    without a lock: slots are appended behind what it knows, and what it knows stays as it was
    until ``changes``, the counter of changes in place, has moved. Writers take turns.

    NumPy asks for huge pages for arrays this long, and a scan is a read of memory: see STYLE.md.
    Half precision halves the memory and costs a cosine 1e-5, 6e-5 at most (measured, D = 256).
    """

    def __init__(self, bits: int, dim: int) -> None:
        self.count, self.changes, self._most = 0, 0, 0
        self.codes: Bytes = np.empty((0, bits // 8), np.uint8)
        self.vectors: Halves = np.empty((0, dim), np.float16)
        self.ids: Longs = np.empty(0, np.int64)

    def reserve(self, extra: int) -> None:
        """Make room for ``extra`` more; readers may go on, as the slots that are taken are copied.

        Raises:
            MemoryError: Nothing has changed then.
        """
        needed = self.count + extra
        if needed <= len(self.ids):
            return
        capacity = max(needed, int(len(self.ids) * GROWTH))
        codes = _longer(self.codes, self.count, capacity)
        vectors = _longer(self.vectors, self.count, capacity)
        ids = _longer(self.ids, self.count, capacity)
        self.codes, self.vectors, self.ids, self._most = codes, vectors, ids, self.count

    def extend(self, ids: Longs, codes: Bytes, vectors: NDArray[np.floating]) -> int:
        """Append n entries, for which room is reserved; return the slot of the first."""
        first, end = self.count, self.count + len(ids)
        self.codes[first:end], self.vectors[first:end], self.ids[first:end] = codes, vectors, ids
        self.count = end
        self._most = max(self._most, end)
        return first

    def replace(self, slot: int, code: Bytes, vector: NDArray[np.floating]) -> None:
        """Give the entry of a slot another code [K/8] and vector [D]."""
        self.changes += 1
        self.codes[slot], self.vectors[slot] = code, vector

    def remove(self, slot: int) -> int | None:
        """Free a slot and move the last entry there; return that entry, None if none moved."""
        self.changes += 1  # for the last slot too: the next entry will be written there
        last = self.count - 1
        self.count = last
        if slot == last:
            return None
        for rows in (self.codes, self.vectors, self.ids):
            rows[slot] = rows[last]
        return int(self.ids[slot])

    @property
    def nbytes(self) -> int:
        """Bytes of memory; what is reserved in a large array and was never written takes none."""
        return sum(
            array.nbytes if array.nbytes < WHOLE else self._most * array[0].nbytes
            for array in (self.codes, self.vectors, self.ids)
        )


def _longer(rows: NDArray[Any], count: int, capacity: int) -> NDArray[Any]:
    longer = np.empty((capacity, *rows.shape[1:]), rows.dtype)
    longer[:count] = rows[:count]
    return longer
