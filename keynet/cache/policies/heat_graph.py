"""Heat graph: a use warms an entry and what is like it, and all cool down."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from keynet.cache.policies.policy import PolicyError, Stored, check_capacity, check_share
from keynet.cache.policies.rows import Rows, vector_of

PERIOD = 5.0  # seconds in which heat falls to gamma of itself
FIRST_SLOTS = 64


class HeatGraph:
    """The coldest entry goes; of equals, the one that was stored first.

    Entries of one scope are joined by an edge where their cosine is alpha or more, of weight
    cosine^beta. A use puts heat into its entry, and as much times the edge's weight into each
    neighbour; storing is a use. A hit by a similar key has the heat of its own edge to the entry:
    1 for an equal key, nothing below alpha. All heat falls to gamma of itself every 5 s.

    Args:
        capacity: Not used; the heats alone decide.
        seed: Not used; nothing is drawn.
        alpha: Least cosine of an edge, 0 to 1.
        gamma: What is left of heat after 5 s, more than 0, up to 1.
        beta: Exponent of the cosine, 0 or more.
        clock: Seconds; a clock that goes back stands still meanwhile. In a replay, the trace's.

    Raises:
        PolicyError: The capacity or a parameter is none, or an entry has no vector.

    Source: SPEC C3, which has the three constants and a heat vector an entry from cross-modal
        attention. A cache sees no attention maps, so the fused key stands for them, and heat is one
        number. It spreads one edge far: what a neighbour is given is not passed on.
    """

    def __init__(
        self,
        capacity: int,
        seed: int = 0,
        *,
        alpha: float = 0.65,
        gamma: float = 0.88,
        beta: float = 0.7,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_capacity(capacity)
        self._alpha, self._gamma = check_share("alpha", alpha), check_share("gamma", gamma)
        if gamma == 0:
            raise PolicyError("gamma is 0; expected more than 0, or all heat is gone at once")
        if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not 0 <= beta < np.inf:
            raise PolicyError(f"beta is {beta!r}; expected a number, 0 or more")
        self._beta, self._clock = beta, clock
        self._start = self._now = clock()
        # Logarithms of what a heat would have been at the start, so nothing is done as all cool
        # down, and the order outlasts an idle night. Infinite where free.
        self._heat: NDArray[np.float64] = np.full(FIRST_SLOTS, np.inf)
        self._entry: NDArray[np.int64] = np.zeros(FIRST_SLOTS, np.int64)
        self._free = list(range(FIRST_SLOTS))[::-1]
        self._slot: dict[int, int] = {}
        self._scopes: dict[tuple[str, int], Rows] = {}
        self._scope_of: dict[int, tuple[str, int]] = {}

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Warm it and its neighbours."""
        self._warm(entry, float(self._weights(np.array(similarity))))

    def on_miss(self, incoming: Stored) -> None:
        """Learn nothing."""

    def on_insert(self, stored: Stored) -> None:
        """Join it to its neighbours, and warm all."""
        vector, entry = vector_of(stored, "heat graph"), stored.entry
        if not self._free:
            self._grow()
        slot = self._slot[entry] = self._free.pop()
        self._heat[slot], self._entry[slot] = -np.inf, entry
        scope = self._scope_of[entry] = (stored.scope, len(vector))
        if scope not in self._scopes:
            self._scopes[scope] = Rows(vectors=(len(vector), np.float32), slots=(1, np.int64))
        self._scopes[scope].add(entry, vectors=vector, slots=slot)
        self._warm(entry, 1.0)

    def on_remove(self, entry: int) -> None:
        """Forget it; the heat that it gave stays."""
        slot, scope = self._slot.pop(entry), self._scope_of.pop(entry)
        self._heat[slot] = np.inf
        self._free.append(slot)
        self._scopes[scope].remove(entry)
        if not self._scopes[scope]:
            del self._scopes[scope]

    def victim(self) -> int:
        """Return the coldest."""
        if not self._slot:
            raise LookupError("heat graph holds no entry")
        coldest = np.flatnonzero(self._heat == self._heat.min())
        entry = int(self._entry[coldest].min())
        self.on_remove(entry)
        return entry

    def _warm(self, entry: int, heat: float) -> None:
        self._now = max(self._now, self._clock())
        if not heat:
            return
        rows = self._scopes[self._scope_of[entry]]
        weights = self._weights(rows["vectors"] @ rows.row("vectors", entry))
        slots = rows["slots"][:, 0]
        weights[slots == self._slot[entry]] = 1.0  # of unit norm but for rounding
        joined = weights > 0
        at_start = math.log(heat) - math.log(self._gamma) * (self._now - self._start) / PERIOD
        at = slots[joined]
        self._heat[at] = np.logaddexp(self._heat[at], np.log(weights[joined]) + at_start)

    def _weights(self, cosines: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the weights of edges, 0 where there is none."""
        clipped = np.clip(cosines, 0.0, 1.0).astype(np.float64)
        return np.where(cosines >= self._alpha, clipped**self._beta, 0.0)

    def _grow(self) -> None:
        old = len(self._heat)
        self._heat = np.concatenate([self._heat, np.full(old, np.inf)])
        self._entry = np.concatenate([self._entry, np.zeros(old, np.int64)])
        self._free = list(range(old, 2 * old))[::-1]
