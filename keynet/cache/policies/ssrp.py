"""SSRP, replacement by meaning: what others can stand in for goes first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from keynet.cache.policies.policy import Stored, check_capacity
from keynet.cache.policies.rising import RisingRanks
from keynet.cache.policies.rows import Rows, vector_of
from keynet.hashing.cpu import nearest

KEPT = 4  # neighbours of an entry
EXACT = 512  # entries of a scope whose cosines take no longer than their codes
CANDIDATES = 32  # nearest codes, whose cosines are taken
CODE_BITS = 256
SLACK = 64
UNALIGNED = 0.0  # alignment where a modality is absent: neither for nor against
ScopeKey = tuple[str, int]  # digest and width of the vectors


class SSRP:
    """The entry that costs least goes: 1 - cosine of the nearest entry that can stand in for it.

    Only entries of the same scope can. Of equal costs, the entry of the lowest alignment score
    goes, then the one that was used longest ago; two that are nearest to each other always cost the
    same. Entries without another in their scope cost most.

    Args:
        capacity: Not used; the costs alone decide.
        seed: Of the random projection to codes, by which large scopes are searched.

    Raises:
        PolicyError: The capacity is none, or an entry has no vector.

    Source: SPEC C2. To be told the least cost, each entry is compared with those that were there
        when it came, and with all when the ``KEPT`` nearest of them have gone. Past ``EXACT``
        entries in a scope, with the ``CANDIDATES`` of the nearest codes (signs of random
        projections): an entry whose neighbours are far may seem to cost more than it does.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        check_capacity(capacity)
        self._seed = seed
        self._projections: dict[int, NDArray[np.float32]] = {}
        self._stored: dict[int, Stored] = {}
        self._scopes: dict[ScopeKey, Rows] = {}
        self._tick = 0
        self._used: dict[int, int] = {}
        self._ranks = RisingRanks()  # by alignment and last use, for where none can stand in
        self._near: dict[int, list[int]] = {}  # those that an entry was compared with,
        self._near_to: dict[int, set[int]] = {}  # and the other way round
        self._pairs: list[tuple[float, float, int, int]] = []  # cost, alignment, two entries

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Note a use, which decides between equals."""
        self._use(entry)
        self._ranks.raise_to(entry, (self._alignment(entry), self._tick))

    def on_miss(self, incoming: Stored) -> None:
        """Learn nothing."""

    def on_insert(self, stored: Stored) -> None:
        """Compare it with its scope."""
        vector, entry = vector_of(stored, "SSRP"), stored.entry
        self._stored[entry] = stored
        self._use(entry)
        self._ranks.add(entry, (self._alignment(entry), self._tick))
        self._near_to[entry] = set()
        scope = (stored.scope, len(vector))
        rows = self._scopes.get(scope)
        if rows is None:
            words = CODE_BITS // 32
            rows = Rows(vectors=(len(vector), np.float32), codes=(words, np.int32))
            self._scopes[scope] = rows
        code = self._code(vector)
        self._compare(entry, vector, code, rows)
        rows.add(entry, vectors=vector, codes=code)

    def on_remove(self, entry: int) -> None:
        """Forget it."""
        self._ranks.remove(entry)
        self._forget(entry)

    def victim(self) -> int:
        """Return the one that costs least."""
        while self._pairs:
            _, _, *pair = self._pairs[0]
            if all(one in self._stored for one in pair):
                entry = min(pair, key=lambda one: (self._alignment(one), self._used[one]))
                self.on_remove(entry)
                return entry
            heappop(self._pairs)
        if not self._ranks:
            raise LookupError("SSRP holds no entry")
        entry, _ = self._ranks.pop()
        self._forget(entry)
        return entry

    def _compare(
        self, entry: int, vector: NDArray[np.float32], code: NDArray[np.int32], rows: Rows
    ) -> None:
        """Note the nearest of the rows, itself left out."""
        found = [one for one in _nearest(vector, code, rows) if one[0] != entry][:KEPT]
        self._near[entry] = [other for other, _ in found]
        mine = self._alignment(entry)
        for other, cosine in found:
            self._near_to[other].add(entry)
            alignment = min(mine, self._alignment(other))
            heappush(self._pairs, (max(0.0, 1 - cosine), alignment, other, entry))
        if len(self._pairs) > 2 * KEPT * len(self._stored) + SLACK:
            held = self._stored
            self._pairs = [one for one in self._pairs if one[2] in held and one[3] in held]
            heapify(self._pairs)

    def _forget(self, entry: int) -> None:
        stored = self._stored.pop(entry)
        del self._used[entry]
        vector = vector_of(stored, "SSRP")
        scope = (stored.scope, len(vector))
        rows = self._scopes[scope]
        rows.remove(entry)
        if not rows:
            del self._scopes[scope]
        for other in self._near.pop(entry):
            self._near_to[other].discard(entry)
        for other in self._near_to.pop(entry):
            near = self._near[other]
            near.remove(entry)
            if not near and len(rows) > 1:
                self._compare(other, rows.row("vectors", other), rows.row("codes", other), rows)

    def _use(self, entry: int) -> None:
        self._tick += 1
        self._used[entry] = self._tick

    def _alignment(self, entry: int) -> float:
        alignment = self._stored[entry].alignment
        return UNALIGNED if alignment is None else alignment

    def _code(self, vector: NDArray[np.float32]) -> NDArray[np.int32]:
        projection = self._projections.get(len(vector))
        if projection is None:
            rng = np.random.default_rng(self._seed)
            projection = rng.standard_normal((len(vector), CODE_BITS), np.float32)
            self._projections[len(vector)] = projection
        return np.packbits(vector @ projection >= 0).view(np.int32)


def _nearest(
    vector: NDArray[np.float32], code: NDArray[np.int32], rows: Rows
) -> list[tuple[int, float]]:
    """Return the nearest entries with their cosines, one more than are kept; fewer if there are."""
    vectors = rows["vectors"]
    if len(rows) <= EXACT:
        places = np.arange(len(rows))
    else:
        places = nearest(code[None], rows["codes"], CANDIDATES)[1][0]
        vectors = vectors[places]
    cosines = vectors @ vector
    best = np.argsort(-cosines, kind="stable")[: KEPT + 1]
    return [(rows.entries[places[at]], float(cosines[at])) for at in best.tolist()]
