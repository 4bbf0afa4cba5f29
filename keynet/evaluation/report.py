"""report.json: every measured figure of one run, as other programs read it."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import torch

from keynet.evaluation.records import Record

SCHEMA = 1
DISTRIBUTIONS = (
    "keynet-cache", "torch", "numpy", "timm", "tokenizers", "pillow", "pytorch-lightning"
)  # fmt: skip
REQUIRED = frozenset(
    ("data", "split", "subset", "method", "bits", "metric", "value", "low", "high", "n", "unit")
)


def write_report(path: Path, records: Sequence[Record], command: str) -> None:
    """Write records as report.json, whole or not at all.

    Args:
        records: One per figure; values that are NaN or infinite are written as null.
        command: The command line that measured them.

    Raises:
        OSError: When the file cannot be written; an older report stays as it was.
    """
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "command": command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": installed_versions(),
        "machine": describe_machine(),
    }
    report["records"] = [_to_json(record) for record in records]
    text = json.dumps(report, indent=1, allow_nan=False)
    write_whole(path, (text + "\n").encode())


def read_report(path: Path) -> list[Record]:
    """Return the records of a report.json.

    Raises:
        ValueError: When the file is no report, or of another schema.
    """
    try:
        report = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except ValueError as error:
        raise ValueError(
            f"{path} is not a report.json ({error}); run the evaluation again"
        ) from error
    found = report.get("schema") if isinstance(report, dict) else None
    if isinstance(found, bool) or found != SCHEMA:
        raise ValueError(
            f"{path} has report schema {found!r}, this version reads {SCHEMA}; "
            "run the evaluation again, or read it with the version that wrote it"
        )
    entries = report.get("records")
    if not isinstance(entries, list):
        raise ValueError(f"{path} has no list 'records'; run the evaluation again")
    return [_from_json(entry, path, index) for index, entry in enumerate(entries)]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file through a temporary neighbour, so that readers see all of it or none.

    Raises:
        OSError: When the folder is unwritable or the disk full; nothing is left behind.
    """
    # Not tempfile: its files are readable by their owner only, and a report is for others.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            error.errno,
            f"cannot write the report ({reason}); free some space or choose a writable folder",
            str(path),
        ) from error


def installed_versions() -> dict[str, str | None]:
    """Return the version of Python and of each distribution that bears on the figures."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def describe_machine() -> dict[str, str | int | float | None]:
    """Return cpu model, cores this process may use, memory in GiB, and gpu or None."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "memory_gib": round(memory, 1),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _to_json(record: Record) -> dict[str, Any]:
    entry = record.as_dict()
    entry["bits"] = None if record.bits is None else int(record.bits)
    entry["n"] = int(record.n)  # counts often come as NumPy integers, which json refuses
    for name in ("value", "low", "high"):
        entry[name] = _finite(entry[name])
    return entry


def _from_json(entry: Any, path: Path, index: int) -> Record:
    keys = set(entry) if isinstance(entry, dict) else set()
    if not keys >= REQUIRED or keys - REQUIRED - {"note"}:
        wrong = sorted(map(str, (REQUIRED - keys) | (keys - REQUIRED - {"note"})))
        raise ValueError(
            f"record {index} of {path} lacks or has unknown {', '.join(wrong)}; "
            "run the evaluation again"
        )
    return Record(**entry)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which is not JSON")
