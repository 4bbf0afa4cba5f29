"""What a replay served, counted by whatever its visits are divided by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keynet.replay.closed_loop import FALSE_HIT, HIT
from keynet.replay.neighbours import Floats
from keynet.replay.semantic_trace import SemanticTrace


@dataclass(frozen=True)
class Tally:
    """Counts of some visits of a replay.

    Args:
        visits: How many.
        hits: Served rightly.
        false_hits: Served wrongly.
        oracle: Visits whose group came before: hits of a boundless cache that knows the groups.
        bytes_asked: Of all responses.
        bytes_moved: Of them, those that came from upstream: of misses.
        cost_asked: Of all responses, in the trace's unit.
        cost_saved: Of them, those of right hits. A false hit saves nothing.
        lookup_p50: Seconds.
        lookup_p99: Seconds.
    """

    visits: int
    hits: int
    false_hits: int
    oracle: int
    bytes_asked: int
    bytes_moved: int
    cost_asked: float
    cost_saved: float
    lookup_p50: float
    lookup_p99: float

    @property
    def served(self) -> int:
        """Rightly or wrongly."""
        return self.hits + self.false_hits

    @property
    def hit_rate(self) -> float:
        """Right hits / visits; 0 without any."""
        return self.hits / max(1, self.visits)

    @property
    def false_hit_rate(self) -> float | None:
        """False hits / served; None where nothing was."""
        return self.false_hits / self.served if self.served else None


def tally(
    trace: SemanticTrace,
    outcome: NDArray[np.int8],
    oracle: NDArray[np.bool_],
    seconds: Floats,
    where: NDArray[Any] | None = None,
) -> Tally:
    """Count the visits of a replay.

    Args:
        trace: Of V visits.
        outcome: int8 [V], see ``CacheReplay``.
        oracle: bool [V].
        seconds: float32 [V], of the lookups.
        where: bool [V], visits to count; None counts all.
    """
    at = np.arange(len(trace)) if where is None else np.flatnonzero(where)
    found, size, cost = outcome[at], trace.size[at], trace.cost[at]
    right, wrong = found == HIT, found == FALSE_HIT
    p50, p99 = np.quantile(seconds[at], (0.5, 0.99)).tolist() if len(at) else (0.0, 0.0)
    return Tally(
        visits=len(at),
        hits=int(right.sum()),
        false_hits=int(wrong.sum()),
        oracle=int(oracle[at].sum()),
        bytes_asked=int(size.sum()),
        bytes_moved=int(size[~right & ~wrong].sum()),
        cost_asked=float(cost.sum()),
        cost_saved=float(cost[right].sum()),
        lookup_p50=p50,
        lookup_p99=p99,
    )


def load(trace: SemanticTrace, window: float) -> Floats:
    """Return for each visit how many visits a second its window of time had, float32 [V].

    Args:
        window: Seconds.
    """
    if not window > 0:
        raise ValueError(f"window is {window}; expected seconds, more than 0")
    number = np.floor((trace.time - trace.time[0]) / window).astype(np.int64)
    _, inverse, count = np.unique(number, return_inverse=True, return_counts=True)
    rate: Floats = (count[inverse] / window).astype(np.float32)
    return rate


def thirds(values: NDArray[Any]) -> NDArray[np.int8]:
    """Return 0, 1 or 2 [V]: the lower, middle or upper third of the visits by a value."""
    cuts = np.quantile(values, (1 / 3, 2 / 3))
    return np.searchsorted(cuts, values, side="left").astype(np.int8)
