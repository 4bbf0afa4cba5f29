"""What torchrun tells a process of a training, before the processes have met."""

from __future__ import annotations

import os


def launched() -> tuple[int, int]:
    """Return the number of this process and of all that were started; (0, 1) without torchrun."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
