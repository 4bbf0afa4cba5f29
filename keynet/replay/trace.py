"""A trace: what was asked for and when, read record by record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class TraceError(ValueError):
    """A trace that cannot be replayed; the message names the line and what was expected."""


class Visit(NamedTuple):
    """One request of a trace.

    Args:
        time: Seconds since the trace began, or since any other moment.
        object: What was asked for; None in a trace of arrivals alone.
        size: Bytes of the response.
        cost: Of making the response, in any unit that is the same for all.
        scope: What must match exactly.
    """

    time: float
    object: int | str | None
    size: int = 1
    cost: float = 1.0
    scope: str = ""


def in_order(
    path: Path, numbered: Iterable[tuple[int, Visit]], unit: str = "line"
) -> Iterator[Visit]:
    """Yield the visits of a trace.

    Args:
        path: For messages.
        numbered: Visits, each with the number of its line or record.
        unit: What the numbers count.

    Raises:
        TraceError: There is none, or one is earlier than the one before it.
    """
    before: float | None = None
    for number, visit in numbered:
        if before is not None and visit.time < before:
            raise TraceError(
                f"{path}, {unit} {number}: time {visit.time:.15g} is before {before:.15g} of the "
                f"{unit} before it; sort the trace by time"
            )
        before = visit.time
        yield visit
    if before is None:
        raise TraceError(f"{path} is empty; expected at least one {unit}")
