"""The formats of traces by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from keynet.replay.azure import read_azure
from keynet.replay.jsonl_trace import read_jsonl
from keynet.replay.mooncake import read_mooncake
from keynet.replay.oracle_general import read_oracle_general
from keynet.replay.trace import TraceError, Visit

FORMATS: Mapping[str, Callable[[Path], Iterator[Visit]]] = {
    "jsonl": read_jsonl,
    "oracle_general": read_oracle_general,
    "mooncake": read_mooncake,
    "azure": read_azure,
}


def read_trace(path: str | Path, format: str) -> Iterator[Visit]:
    """Return the visits of a trace, read as they are asked for: ten million take no memory.

    Args:
        path: Of the file, unpacked.
        format: One of ``FORMATS``.

    Raises:
        TraceError: The format is not known, there is no such file; or, while reading, a record
            cannot be taken.
    """
    if format not in FORMATS:
        raise TraceError(f"no trace format {format!r}; known are {', '.join(FORMATS)}")
    place = Path(path)
    if not place.is_file():
        raise TraceError(f"{place} is no file; give the path of a trace")
    return FORMATS[format](place)
