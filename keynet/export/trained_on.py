"""What an export's model was trained on: a number for each picture, and for each text alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keynet.export.loader import read_file
from keynet.export.manifest import ArtefactError, read_manifest

TRAINED_ON = "trained_on.u64"
Numbers = NDArray[np.uint64]
ON_DISK = np.dtype("<u8")


def packed(numbers: Numbers) -> bytes:
    """Return the content of the file, each number once, in ascending order."""
    return np.unique(numbers).astype(ON_DISK).tobytes()


def unpacked(content: bytes) -> Numbers:
    """Return the numbers [N] in the content of the file.

    Raises:
        ArtefactError: When it is not as ``packed`` writes it.
    """
    if not content or len(content) % ON_DISK.itemsize:
        raise ArtefactError(
            f"{TRAINED_ON} has {len(content):,} bytes; expected 8 for each number, and one at "
            "least; export the model again"
        )
    numbers = np.frombuffer(content, ON_DISK).astype(np.uint64)
    if not (numbers[1:] > numbers[:-1]).all():
        place = int((numbers[1:] <= numbers[:-1]).argmax()) + 1
        raise ArtefactError(
            f"{TRAINED_ON}: number {place} is not above the one before it; expected each once, in "
            "ascending order; export the model again"
        )
    return numbers


def read_trained_on(folder: str | Path) -> Numbers | None:
    """Return the numbers [N] of what an export's model was trained on; None where it has no file.

    Raises:
        ArtefactError: When the export or its file cannot be read, or was altered.
    """
    manifest = read_manifest(folder)
    if TRAINED_ON not in manifest.files:
        return None
    return unpacked(read_file(folder, manifest, TRAINED_ON))
