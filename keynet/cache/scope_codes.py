"""The codes of one scope: searched whole while they are few, in inverted lists when they are many.

Writers take turns, by a lock of their own that the caller holds; any thread may search meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keynet.cache.inverted_lists import Guard, InvertedLists, StoppedError, one_thread
from keynet.cache.slots import Slots
from keynet.hashing.cpu import faiss, nearest

LISTS_FROM = 300_000  # codes; a scan of 256 bits takes .3 ms there, lists .09
REBUILD = 2  # times as many codes as the lists were made for: they are made anew
LISTS_UP_TO = 256  # candidates; a search for more scans: lists would miss too many
TRIES = 3  # scans that a change in place may spoil before searching holds up writers
AT_ONCE = 1024  # slots appended while readers of lists wait: some milliseconds
CATCH_UP = 256  # slots taken up while writers wait
SCOPE = 1100  # bytes of a scope's objects, as the resident memory of 10,000 scopes grew by

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
    with writers locked out. A search in lists keeps writers out while it lasts. There may be many
    scopes of one entry: what only lists need is made with the first of them.

    Args:
        bits: K.
        dim: D.
        write_lock: The lock that writers hold.
    """

    def __init__(self, bits: int, dim: int, write_lock: threading.Lock) -> None:
        self._slots = Slots(bits, dim)
        self._write_lock = write_lock
        self._lock = threading.Lock()  # short: for changes of the slots, and looks at them
        self._guard: Guard | None = None  # of lists
        self._lists: InvertedLists | None = None
        self._lists_from = LISTS_FROM
        self._touched: set[int] | None = None  # slots changed since a build began
        self._build: threading.Thread | None = None
        self._stopped = False

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
            with self._changing():
                slot = self._slots.extend(ids[part], codes[part], vectors[part])
                self._touch(range(slot, self._slots.count))
        return first

    def grown(self) -> None:
        """Begin to build lists, if there are now enough codes for them; a failure is logged."""
        if self._slots.count < self._lists_from or self._touched is not None or faiss() is None:
            return
        self._lists_from = REBUILD * self._slots.count
        try:
            codes = self._slots.codes[: self._slots.count].copy()
            # A daemon: nothing of it outlives the process, so that it need not delay its exit.
            build = threading.Thread(
                target=self._built, args=(codes,), name="keynet-lists", daemon=True
            )
            self._guard, self._touched = self._guard or Guard(), set()
            build.start()
        except (RuntimeError, MemoryError) as error:  # no thread, or no room
            self._touched = None
            _log_failure(error)
        else:
            self._build = build

    def replace(self, slot: int, code: Bytes, vector: Floats) -> None:
        """Give the entry of a slot another code and vector."""
        with self._changing():
            self._slots.replace(slot, code, vector)
            self._touch([slot])

    def remove(self, slot: int) -> int | None:
        """Free a slot; return the entry that moved there, None if none did."""
        with self._changing():
            moved = self._slots.remove(slot)
            self._touch([slot, self._slots.count])
            if self._lists is not None and self._slots.count < LISTS_FROM // 2:
                self._lists, self._lists_from = None, LISTS_FROM
        return moved

    def nearest(self, queries: Bytes, num_candidates: int, radius: int) -> Found:
        """Return the nearest codes of each query.

        Args:
            queries: uint8 [Q, K/8].
            num_candidates: Most that are found for a query.
            radius: What is farther is left out, but where another query has more that is near.
        """
        with one_thread():
            if num_candidates <= LISTS_UP_TO and self._guard is not None:
                with self._guard.reading():
                    found = self._listed(queries, num_candidates, radius)
                if found is not None:
                    return found
            for _ in range(TRIES - 1):
                with self._lock:
                    codes, changes = self._slots.codes[: self._slots.count], self._slots.changes
                distances, slots = _scan(codes, queries, num_candidates)
                with self._lock:
                    if self._slots.changes == changes:
                        return self._gather(distances, slots, radius)
            with self._lock:
                codes = self._slots.codes[: self._slots.count]
                return self._gather(*_scan(codes, queries, num_candidates), radius)

    def stop(self) -> None:
        """Let a build that is on end early, without its lists."""
        self._stopped = True

    def join(self) -> None:
        """Wait for a build that is on; the caller must not be a writer."""
        if self._build is not None:
            self._build.join()

    @property
    def nbytes(self) -> int:
        """Bytes of memory; of lists by estimate."""
        lists = self._lists
        return SCOPE + self._slots.nbytes + (0 if lists is None else lists.nbytes)

    @property
    def approximate(self) -> bool:
        """Whether searches look into lists, and so may miss."""
        return self._lists is not None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let nobody see the slots and lists half changed."""
        with self._guard.writing() if self._guard else nullcontext(), self._lock:
            yield

    def _listed(self, queries: Bytes, num_candidates: int, radius: int) -> Found | None:
        """Search the lists; None if there are none or they found too few."""
        if self._lists is None:
            return None
        distances, slots = self._lists.search(queries, min(num_candidates, self._slots.count))
        return self._gather(distances, slots, radius) if (slots >= 0).all() else None

    def _gather(self, distances: Ints, slots: Longs, radius: int) -> Found:
        most = int((distances <= radius).sum(1).max(initial=0))  # of a query; they are sorted
        distances, slots = distances[:, :most], slots[:, :most]
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

    def _built(self, codes: Bytes) -> None:
        """Make lists of codes as they were, take up what changed since, and put them to use."""
        try:
            with one_thread():
                lists = InvertedLists(codes, lambda: self._stopped)
                while True:
                    with self._write_lock:
                        touched = list(self._touched or ())
                        taken = self._taken(touched)
                        self._touched = set()
                        if len(touched) <= CATCH_UP:
                            lists.update(touched, *taken)
                            self._lists = lists  # searches that are on end in the old ones
                            break
                    lists.update(touched, *taken)
            log.info("codes searched in inverted lists: %d", len(lists))
        except StoppedError:
            pass
        except (RuntimeError, MemoryError) as error:
            _log_failure(error)
        finally:
            with self._write_lock:
                self._touched = None  # whatever ended this build, another may begin


def _scan(codes: Bytes, queries: Bytes, num_candidates: int) -> tuple[Ints, Longs]:
    found = nearest(queries.view(np.int32), codes.view(np.int32), min(num_candidates, len(codes)))
    return found[0], found[1]


def _log_failure(error: Exception) -> None:
    log.warning("inverted lists could not be built (%s): scanning goes on", _line(error))


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or repr(error)  # a MemoryError may say nothing
