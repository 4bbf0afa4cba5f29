"""Traces in the binary format oracleGeneral, in which most public cache traces come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from keynet.replay.trace import TraceError, Visit, in_order

RECORD = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
RECORDS_AT_ONCE = 1 << 15


def read_oracle_general(path: Path) -> Iterator[Visit]:
    """Yield the visits of a trace; a size of 0 counts as 1 byte, as nothing moves for less.

    Raises:
        TraceError: The file is cut off, out of order or empty.
        OSError: The file cannot be read.

    Source: Yang et al., the record of libCacheSim's ``oracleGeneralBin``: seconds, object, bytes,
    and the number of the next visit, which no policy here may know.
    """
    size = path.stat().st_size
    if size % RECORD.itemsize:
        raise TraceError(
            f"{path} has {size:,} bytes; expected records of {RECORD.itemsize}, so it is cut off "
            "or of another format (a .zst must be unpacked first)"
        )
    yield from in_order(path, _records(path), "record")


def _records(path: Path) -> Iterator[tuple[int, Visit]]:
    number = 0
    with path.open("rb") as file:
        while block := file.read(RECORDS_AT_ONCE * RECORD.itemsize):
            for time, asked, nbytes, _ in np.frombuffer(block, RECORD).tolist():
                number += 1
                yield number, Visit(float(time), asked, max(1, nbytes))
