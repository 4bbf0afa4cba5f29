"""A log of index records: what an index keeps on disk, in one format for journal and snapshot.

A header of 1,024 bytes (a line of JSON with format, index, generation, key space, for a snapshot
the number of records, and for a journal that of the journal before it; then its CRC-32), then
records of one length, each closed by its CRC-32.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keynet.types import KeySpace

FORMAT = 1
HEADER = 1024
RESTORE = "; restore the folder from a copy, or remove it to start empty"
SET, REMOVE = 1, 2
# The CRC of anything that is followed by its own CRC. Each record's CRC starts from it, so that
# over sound records it comes back to it: one pass over a log checks all of them.
SEED = 0x2144DF1C
Records = NDArray[np.void]


class IndexFilesError(ValueError):
    """A folder of an index that cannot be opened, or trusted; the message says what to do."""


class DamagedError(IndexFilesError):
    """A file that is not what was written."""


class Log(NamedTuple):
    """A log as it was read.

    Args:
        records: All whole records, mapped from the file.
        loose: Bytes behind them.
        origin: The random word of the index that wrote it.
        name: Of the file it was written as.
        before: Records of the journal before it; None where that is not said.
    """

    records: Records
    loose: int
    origin: str
    name: str
    before: int | None


def record_type(space: KeySpace) -> np.dtype[np.void]:
    """Return the type of a record: entry, scope digest, SET or REMOVE, code, vector, CRC."""
    return np.dtype(
        [
            ("entry", "<i8"),
            ("scope", "u1", (16,)),
            ("operation", "<u4"),
            ("code", "u1", (space.bits // 8,)),
            ("vector", "<f2", (space.dim,)),
            ("crc", "<u4"),
        ]
    )


def raw_bytes(records: Records) -> memoryview:
    """Return the bytes of records, without copying."""
    return records.view(np.uint8).data


def seal(records: Records) -> None:
    """Write the CRC of each record."""
    size, raw = records.itemsize, raw_bytes(records)
    records["crc"] = [zlib.crc32(raw[at : at + size - 4], SEED) for at in range(0, len(raw), size)]


def header(
    space: KeySpace, origin: str, number: int, count: int | None = None, before: int | None = None
) -> bytes:
    """Return the header of a snapshot of ``count`` records, or of a journal.

    Args:
        space: Key space of the index.
        origin: A random word of the index.
        number: Generation of the log.
        count: None for a journal.
        before: Records of the journal before a journal; None for the first, and for a snapshot.

    Raises:
        IndexFilesError: The key space does not fit.
    """
    content = {
        "format": FORMAT,
        "origin": origin,
        "kind": "journal" if count is None else "snapshot",
        "number": number,
        "key_space": asdict(space),
        "records": count,
        "before": before,
    }
    line = json.dumps(content).encode() + b"\n"
    if len(line) > HEADER - 4:
        raise IndexFilesError(
            f"name of key space has {len(space.name)} characters; give a shorter one"
        )
    padded = line.ljust(HEADER - 4)
    return padded + zlib.crc32(padded).to_bytes(4, "little")


def read_log(path: Path, space: KeySpace) -> Log:
    """Return the records of a log, which are not checked: see ``first_damaged``.

    Raises:
        DamagedError: The header is damaged, or a snapshot has another number of records.
        IndexFilesError: The log is of a newer format or of another key space.
    """
    with path.open("rb") as file:
        content = _header(file.read(HEADER), path, space)
        kind = record_type(space)
        size = os.fstat(file.fileno()).st_size - HEADER
        count, loose = divmod(size, kind.itemsize)
        if content["records"] not in (None, count) or (loose and content["records"] is not None):
            raise DamagedError(
                f"{path} has {size} bytes of records; expected {content['records']} records of "
                f"{kind.itemsize} bytes"
            )
        name = f"{content['number']}.{content['kind']}"
        source = content["origin"], name, content.get("before")  # older logs do not say it
        if not count:
            return Log(np.empty(0, kind), loose, *source)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Log(np.frombuffer(mapped, kind, count, HEADER), loose, *source)


def first_damaged(records: Records) -> int | None:
    """Return the number of the first record whose CRC is wrong, None if there is none."""
    if zlib.crc32(raw_bytes(records), SEED) == SEED:
        return None
    return int(np.argmin(_sound(records)))


def any_sound(records: Records) -> bool:
    """Return whether the CRC of any record is right."""
    return bool(_sound(records).any())


def last_settings(records: Sequence[Records]) -> NDArray[np.int64]:
    """Return where in logs that follow each other the record stands that set each entry last.

    Entries that were removed since are left out. In the order of the logs.
    """
    entries = np.concatenate([part["entry"] for part in records])
    setting = np.concatenate([part["operation"] for part in records]) == SET
    if setting.all() and (np.diff(entries) > 0).all():
        return np.arange(len(entries))
    _, last = np.unique(entries[::-1], return_index=True)
    places = np.sort(len(entries) - 1 - last)
    kept: NDArray[np.int64] = places[setting[places]]
    return kept


def take(records: Sequence[Records], places: NDArray[np.int64]) -> Records:
    """Return a copy of the records that stand at places of logs that follow each other."""
    taken = np.empty(len(places), records[0].dtype)
    first = 0
    for part in records:
        inside = (places >= first) & (places < first + len(part))
        taken[inside] = part[places[inside] - first]
        first += len(part)
    return taken


def _sound(records: Records) -> NDArray[np.bool_]:
    size, raw = records.itemsize, raw_bytes(records)
    return np.array(
        [zlib.crc32(raw[at : at + size], SEED) == SEED for at in range(0, len(raw), size)], bool
    )


def _header(raw: bytes, path: Path, space: KeySpace) -> dict[str, Any]:
    padded, crc = raw[:-4], raw[-4:]
    if len(raw) != HEADER or zlib.crc32(padded).to_bytes(4, "little") != crc:
        raise DamagedError(f"{path} has a damaged header{RESTORE}")
    content: dict[str, Any] = json.loads(padded)
    if content["format"] != FORMAT:
        raise IndexFilesError(
            f"{path} has format {content['format']}, this version reads {FORMAT}; "
            "use the version that wrote it, or another folder"
        )
    if content["key_space"] != asdict(space):
        raise IndexFilesError(
            f"{path} holds keys of {_words(content['key_space'])}, the index is for "
            f"{_words(asdict(space))}; choose another folder"
        )
    return content


def _words(space: dict[str, Any]) -> str:
    return (
        f"{space['name']} v{space['version']} ({space['fingerprint']}, {space['bits']} bits, "
        f"{space['dim']} dimensions)"
    )
