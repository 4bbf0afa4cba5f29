"""The codes of one scope: searched whole while they are few, in inverted lists when they are many.

Writers take turns, by a lock of their own that the caller holds; any thread may search meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keynet.cache.inverted_lists import Guard, InvertedLists, StoppedError, one_thread
from keynet.cache.slots import Slots
from keynet.hashing.cpu import faiss, nearest

LISTS_FROM = 300_000  # codes; a scan of 256 bits takes .3 ms there, lists .09
REBUILD = 2  # times as many codes as the lists were made for: they are made anew
REACH_OF_LISTS = 256  # a search for more neighbours scans: lists would miss too many
TRIES = 3  # scans that a change in place may spoil before searching holds up writers
AT_ONCE = 1024  # slots appended while readers of lists wait: some milliseconds
CATCH_UP = 256  # slots taken up while writers wait

Bytes = NDArray[np.uint8]
Floats = NDArray[np.floating]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
log = logging.getLogger(__name__)


class Found(NamedTuple):
    """Nearest codes of Q queries, by distance; all at one moment."""

    distances: Ints  # [Q, R]
    entries: Longs  # [Q, R]
    vectors: NDArray[np.float16]  # [Q, R, D]

    def at(self, rows: int | Longs | NDArray[np.bool_]) -> Found:
        """Return rows of it."""
        return Found(self.distances[rows], self.entries[rows], self.vectors[rows])


class ScopeCodes:
    """Slots of one scope, and lists over them when there are many.

    A scan holds no lock: it is repeated when a slot changed in place meanwhile, the last time
    with writers locked out. A search in lists keeps writers out while it lasts.

    Args:
        bits: K.
        dim: D.
        turn: The lock that writers hold.
    """

    def __init__(self, bits: int, dim: int, turn: threading.Lock) -> None:
        self._slots = Slots(bits, dim)
        self._turn = turn
        self._lock = threading.Lock()  # short: for changes of the slots, and looks at them
        self._guard = Guard()
        self._lists: InvertedLists | None = None
        self._lists_from = LISTS_FROM
        self._touched: set[int] | None = None  # slots changed since a build began
        self._build: threading.Thread | None = None
        self._stopped = threading.Event()

    def __len__(self) -> int:
        return self._slots.count

    def reserve(self, extra: int) -> None:
        """Make room, so that ``extend`` cannot fail."""
        self._slots.reserve(extra)

    def extend(self, ids: Longs, codes: Bytes, vectors: Floats) -> int:
        """Append n entries, for which room is reserved; return the slot of the first."""
        first = self._slots.count
        for at in range(0, len(ids), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            with self._guard.writing(), self._lock:
                slot = self._slots.extend(ids[part], codes[part], vectors[part])
                self._touch(range(slot, self._slots.count))
        return first

    def grown(self) -> None:
        """Begin to build lists, if there are now enough codes for them."""
        if self._slots.count >= self._lists_from and self._touched is None and faiss() is not None:
            self._start_build()

    def replace(self, slot: int, code: Bytes, vector: Floats) -> None:
        """Give the entry of a slot another code and vector."""
        with self._guard.writing(), self._lock:
            self._slots.replace(slot, code, vector)
            self._touch([slot])

    def remove(self, slot: int) -> int | None:
        """Free a slot; return the entry that moved there, None if none did."""
        with self._guard.writing(), self._lock:
            moved = self._slots.remove(slot)
            self._touch([slot, self._slots.count])
            if self._lists is not None and self._slots.count < LISTS_FROM // 2:
                self._lists, self._lists_from = None, LISTS_FROM
        return moved

    def nearest(self, queries: Bytes, reach: int) -> Found:
        """Return the nearest of each query's codes [Q, K/8], R = the lesser of reach and count."""
        with one_thread():
            if reach <= REACH_OF_LISTS and self._lists is not None:
                with self._guard.reading():
                    found = self._listed(queries, reach)
                if found is not None:
                    return found
            for _ in range(TRIES - 1):
                with self._lock:
                    codes, changes = self._slots.codes[: self._slots.count], self._slots.changes
                distances, slots = _scan(codes, queries, reach)
                with self._lock:
                    if self._slots.changes == changes:
                        return self._gather(distances, slots)
            with self._lock:
                codes = self._slots.codes[: self._slots.count]
                return self._gather(*_scan(codes, queries, reach))

    def stop(self) -> None:
        """Let a build that is on end early, without its lists."""
        self._stopped.set()

    def join(self) -> None:
        """Wait for a build that is on; the caller must not be a writer."""
        if self._build is not None:
            self._build.join()

    @property
    def nbytes(self) -> int:
        """Bytes of memory; of lists by estimate."""
        lists = self._lists
        return self._slots.nbytes + (0 if lists is None else lists.nbytes)

    @property
    def approximate(self) -> bool:
        """Whether searches look into lists, and so may miss."""
        return self._lists is not None

    def _listed(self, queries: Bytes, reach: int) -> Found | None:
        """Search the lists; None if they are gone or found too few."""
        if self._lists is None:
            return None
        distances, slots = self._lists.search(queries, min(reach, self._slots.count))
        return self._gather(distances, slots) if (slots >= 0).all() else None

    def _gather(self, distances: Ints, slots: Longs) -> Found:
        return Found(distances, self._slots.ids[slots], self._slots.vectors[slots])

    def _touch(self, slots: Sequence[int]) -> None:
        """Let lists know of slots that changed, came or went."""
        if self._touched is not None:
            self._touched.update(slots)
        if self._lists is None:
            return
        try:
            with one_thread():
                self._lists.update(slots, *self._taken(slots))
        except (RuntimeError, MemoryError) as error:  # what faiss raises
            log.warning("inverted lists could not be kept up (%s): scanning instead", _line(error))
            self._lists, self._lists_from = None, REBUILD * self._slots.count

    def _taken(self, slots: Sequence[int]) -> tuple[Longs, Bytes]:
        """Return those of the slots that are taken, and their codes."""
        taken = np.array([slot for slot in slots if slot < self._slots.count], np.int64)
        return taken, self._slots.codes[taken]

    def _start_build(self) -> None:
        self._touched = set()
        self._lists_from = REBUILD * self._slots.count
        codes = self._slots.codes[: self._slots.count].copy()
        self._build = threading.Thread(target=self._built, args=(codes,), name="keynet-lists")
        self._build.start()

    def _built(self, codes: Bytes) -> None:
        """Make lists of codes as they were, take up what changed since, and put them to use."""
        try:
            with one_thread():
                lists = InvertedLists(codes, self._stopped.is_set)
                while True:
                    with self._turn:
                        touched = list(self._touched or ())
                        taken = self._taken(touched)
                        self._touched = set()
                        if len(touched) <= CATCH_UP:
                            lists.update(touched, *taken)
                            with self._guard.writing():
                                self._lists, self._touched = lists, None
                            break
                    lists.update(touched, *taken)
            log.info("codes searched in inverted lists: %d", len(lists))
        except StoppedError:
            self._touched = None
        except (RuntimeError, MemoryError) as error:
            self._touched = None
            log.warning("inverted lists could not be built (%s): scanning goes on", _line(error))


def _scan(codes: Bytes, queries: Bytes, reach: int) -> tuple[Ints, Longs]:
    found = nearest(queries.view(np.int32), codes.view(np.int32), min(reach, len(codes)))
    return found[0], found[1]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
