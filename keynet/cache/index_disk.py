"""What the files of an index ask of the disk, and what to say when it refuses."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MENDS = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EEXIST: "that is a file, or a link to nothing: choose another folder",
    errno.ENOTDIR: "a part of its path is a file: choose another folder",
    errno.EIO: "check the disk",
}


def write_all(handle: int, raw: memoryview) -> None:
    """Write all of it."""
    while raw:  # a disk that fills up takes a part first
        raw = raw[os.write(handle, raw) :]


def bytes_from(path: Path, start: int) -> NDArray[np.uint8]:
    """Return the bytes of a file from ``start`` on."""
    return np.fromfile(path, np.uint8, offset=start)


def sync_folder(folder: Path) -> None:
    """Put names of new files on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def explained(folder: Path, what: str, whose: str = "index") -> Iterator[None]:
    """Let an error of the system say what could not be done, and what to do."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"{whose} cannot be {what} ({error.strerror or error}); "
            + MENDS.get(error.errno or 0, "choose a folder that can be read and written"),
            str(folder),
        ) from error
