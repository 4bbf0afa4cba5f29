"""One figure of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy.stats import binomtest


@dataclass(frozen=True)
class Record:
    """One row of ``report.json``; the fields are those of the schema in ARCHITECTURE.md.

    Args:
        value: None where the figure cannot be given; ``note`` then says why.
        low: Lower end of the interval (95 %, or the least of several orders).
        high: Upper end.
        n: What the figure was measured on: queries, served, visits.
        bits: None for the float key.
    """

    data: str
    split: str
    subset: str
    method: str
    bits: int | None
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    unit: str = "share"
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON; ``note`` only where there is one."""
        row = asdict(self)
        if not self.note:
            del row["note"]
        return row


@dataclass(frozen=True)
class Sheet:
    """Makes records that share data, split, subset, method and bits."""

    data: str
    split: str
    subset: str
    method: str
    bits: int | None

    def figure(
        self,
        metric: str,
        value: float | None,
        low: float | None = None,
        high: float | None = None,
        n: int = 0,
        note: str = "",
        unit: str = "share",
    ) -> Record:
        """A record of ``value``."""
        return Record(
            self.data, self.split, self.subset, self.method, self.bits,
            metric, value, low, high, n, unit, note,
        )  # fmt: skip

    def share(self, metric: str, count: int, n: int, note: str = "") -> Record:
        """``count`` of ``n`` with its exact binomial interval; n/a when ``n`` is 0."""
        if n == 0:
            return self.figure(metric, None, note=note or "nothing to count")
        return self.figure(metric, count / n, *interval(count, n), n, note)

    def spread(self, metric: str, values: Sequence[float], n: int, note: str = "") -> Record:
        """Mean of ``values``, with the least and the greatest; n/a when there are none."""
        if not values:
            return self.figure(metric, None, n=n, note=note or "nothing to average")
        mean = sum(values) / len(values)
        return self.figure(metric, mean, min(values), max(values), n, note)


def interval(count: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact (Clopper-Pearson) interval of the share ``count`` / ``n``."""
    found = binomtest(count, n).proportion_ci(confidence_level=confidence, method="exact")
    return float(found.low), float(found.high)
