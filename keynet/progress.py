"""Progress of what takes a while, with an estimate."""

from __future__ import annotations

import os
import sys
from functools import partial

from tqdm import tqdm

# A terminal is told ten times a second; a file keeps what it is told, so twice a minute.
_SECONDS = 0.1 if sys.stderr.isatty() else 30.0

# tqdm, by the first process alone.
progress_bar = partial(
    tqdm,
    mininterval=_SECONDS,
    maxinterval=max(10.0, _SECONDS),
    disable=os.environ.get("RANK", "0") != "0",
)
