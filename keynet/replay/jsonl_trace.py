"""Our own traces: one JSON object a line.

``{"time": 3.5, "object": "a", "size": 512, "cost": 0.2, "scope": "tenant 7"}``: ``time`` in
seconds, never decreasing, and ``object``, a text or a whole number, must be there; ``size`` in
bytes (1 or more), ``cost`` (0 or more) and ``scope`` need not. Other fields are an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keynet.replay.trace import TraceError, Visit, in_order

FIELDS = ("time", "object", "size", "cost", "scope")


def read_jsonl(path: Path) -> Iterator[Visit]:
    """Yield the visits of a trace of our own.

    Raises:
        TraceError: A line is none, or earlier than the one before it; there is no line.
        OSError: The file cannot be read.
    """
    yield from in_order(path, _lines(path))


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's number and its JSON object; empty lines are passed over.

    Raises:
        TraceError: A line is no JSON object.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TraceError(
                    f"{path}, line {number}: {error}; expected one JSON object"
                ) from error
            if not isinstance(row, dict):
                raise TraceError(
                    f"{path}, line {number}: {type(row).__name__}; expected one JSON object"
                )
            yield number, row


def field(path: Path, number: int, row: dict[str, Any], name: str) -> Any:
    """Return a field of a line.

    Raises:
        TraceError: It is missing.
    """
    if name not in row:
        raise TraceError(
            f"{path}, line {number}: no field {name}, only {', '.join(row) or 'none'}; add it"
        )
    return row[name]


def number_field(
    path: Path, number: int, row: dict[str, Any], name: str, whole: bool = False, least: float = 0
) -> float:
    """Return a field that is a number.

    Raises:
        TraceError: It is missing, no number, or less than ``least``.
    """
    value = field(path, number, row, name)
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < math.inf:
        kind = "a whole number" if whole else "a number"
        raise TraceError(
            f"{path}, line {number}: {name} is {value!r}; expected {kind}, {least:g} or more"
        )
    return value


def _lines(path: Path) -> Iterator[tuple[int, Visit]]:
    for number, row in json_lines(path):
        unknown = next((name for name in row if name not in FIELDS), None)
        if unknown is not None:
            raise TraceError(
                f"{path}, line {number}: unknown field {unknown}; expected {', '.join(FIELDS)}"
            )
        time = float(number_field(path, number, row, "time"))
        asked = field(path, number, row, "object")
        if isinstance(asked, bool) or not isinstance(asked, (int, str)):
            raise TraceError(
                f"{path}, line {number}: object is {asked!r}; expected a text or a whole number"
            )
        size = number_field(path, number, row, "size", whole=True, least=1) if "size" in row else 1
        cost = number_field(path, number, row, "cost") if "cost" in row else 1.0
        scope = row.get("scope", "")
        if not isinstance(scope, str):
            raise TraceError(f"{path}, line {number}: scope is {scope!r}; expected a text")
        yield number, Visit(time, asked, int(size), float(cost), scope)
