"""Arrivals of requests to a language model as Azure published them: CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from keynet.replay.mooncake import BYTES_A_TOKEN
from keynet.replay.trace import TraceError, Visit, in_order

COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read_azure(path: Path) -> Iterator[Visit]:
    """Yield arrivals: nothing says what was asked for, so that ``object`` is None.

    The cost is the number of tokens read and written, the size what is written at
    ``BYTES_A_TOKEN``.

    Raises:
        TraceError: A column is missing, a line is of another type or out of order, or there is
            none.
        OSError: The file cannot be read.

    Source: Patel et al., Splitwise (ISCA 2024), the published traces of two services.
    """
    yield from in_order(path, _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, Visit]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        head = next(rows, None)
        if head is None:
            return
        if head != COLUMNS:
            raise TraceError(f"{path}, line 1: columns {', '.join(head)}; expected {COLUMNS}")
        for row in rows:
            number = rows.line_num
            if len(row) != len(COLUMNS):
                raise TraceError(f"{path}, line {number}: {len(row)} values; expected {COLUMNS}")
            try:
                # Python keeps six digits of the second; the trace has seven.
                time = datetime.fromisoformat(row[0][:26]).replace(tzinfo=UTC).timestamp()
                read, written = int(row[1]), int(row[2])
            except ValueError as error:
                raise TraceError(
                    f"{path}, line {number}: {error}; expected a time and two whole numbers"
                ) from error
            if read < 0 or written < 0:
                raise TraceError(
                    f"{path}, line {number}: {read}, {written} tokens; expected 0 or more"
                )
            yield number, Visit(time, None, max(1, BYTES_A_TOKEN * written), float(read + written))
