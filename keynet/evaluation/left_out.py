"""What was left out of a judgement, since a model was trained on it, for a report to say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, runtime_checkable

from keynet.evaluation.records import Record, Sheet

LEFT_OUT = "left_out"


@runtime_checkable
class ThinnedSource(Protocol):
    """A source that leaves requests out (``data.held_out.HeldOut``).

    ``left_out`` has for each split of ``requests`` and ``captions`` that was asked for how many
    (None: not known), of how many, and a sentence where there is something to say.
    """

    name: str
    left_out: Mapping[tuple[str, str], tuple[int | None, int, str]]


def left_out_records(source: object, method: str) -> list[Record]:
    """Return a record for each split that was asked for: how many requests were left out.

    Captions are a subset of their own.

    Args:
        source: Of any kind; one that leaves nothing out gives no record.
        method: Name of the model.
    """
    if not isinstance(source, ThinnedSource):
        return []
    return [
        Sheet(source.name, split, "all" if what == "requests" else what, method, None).figure(
            LEFT_OUT, count, n=total, note=note, unit="count"
        )
        for (what, split), (count, total, note) in source.left_out.items()
    ]


def left_out_lines(records: Iterable[Record]) -> tuple[str, ...]:
    """Return what such records have to say, each sentence once."""
    return tuple(dict.fromkeys(r.note for r in records if r.metric == LEFT_OUT and r.note))
