"""Files that paths, globs and numbered ranges name."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path


def find_files(paths: str | Path | Sequence[str | Path] | None, what: str) -> list[Path]:
    """Return the files that paths, globs and numbered ranges name, each once, sorted.

    Args:
        paths: Such as ``train.tar``, ``train-*.tar`` or ``train-{00..02}.tar``.
        what: What messages call one of them.

    Raises:
        FileNotFoundError: When one of them matches no file.
        ValueError: For a range that goes down.
    """
    if paths is None:  # as data.source.train=null
        raise FileNotFoundError(f"no {what} is named; give a path, a glob or a list of them")
    patterns = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not patterns:
        raise FileNotFoundError(f"no {what}: the list of paths is empty; give at least one")
    found: set[Path] = set()
    for pattern in patterns:
        for name in _numbered(str(pattern)):
            matched = [name] if Path(name).exists() else glob.glob(name, recursive=True)
            files = {Path(match) for match in matched if Path(match).is_file()}
            if not files:
                raise FileNotFoundError(f"no {what} at {name!r}; check the path or pattern")
            found |= files
    return sorted(found)


def _numbered(pattern: str) -> list[str]:
    """Expand the ranges ``{first..last}``, both ends included, to the width of the first."""
    written = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if written is None:
        return [pattern]
    first, last = written.groups()
    if int(first) > int(last):
        raise ValueError(f"{pattern!r}: the range {written[0]} goes down; write the smaller first")
    head, tail = pattern[: written.start()], _numbered(pattern[written.end() :])
    numbers = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return [head + number + rest for number in numbers for rest in tail]
