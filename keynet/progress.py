"""Progress of what takes a while, with an estimate."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from tqdm import tqdm


class _StandardError:
    """Standard error; a full disk or a closed pipe behind it does not end the work."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


_THERE = sys.stderr is not None
# A terminal is told ten times a second; a file keeps what it is told, so twice a minute.
_SECONDS = 0.1 if _THERE and sys.stderr.isatty() else 30.0

# tqdm, by the first process alone.
progress_bar = partial(
    tqdm,
    file=_StandardError(),
    mininterval=_SECONDS,
    maxinterval=max(10.0, _SECONDS),
    disable=not _THERE or os.environ.get("RANK", "0") != "0",
)
