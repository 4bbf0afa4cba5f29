"""The lock of an index's folder, and whose that folder is: files of other programs are left alone.

``lock`` holds the number of the process that has the folder open. It is an advisory lock, which
the system drops when that process ends. Forked children inherit it, and must not write.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from keynet.cache.index_log import IndexFilesError

NUMBER = "(0|[1-9][0-9]*)"
OWN = re.compile(rf"{NUMBER}\.(journal|snapshot)(\.tmp|\.cut)?")
LOGS = re.compile(rf"{NUMBER}\.(journal|snapshot)")


class FolderLock:
    """The lock of a folder, held until ``release``.

    Args:
        folder: One that is there.
        what: Whose folder it is, for messages.
        require_own: Raises IndexFilesError for a folder that holds something else.

    Raises:
        IndexFilesError: The folder is in use, holds something else, or cannot be locked here.
        OSError: The folder cannot be read or written.
    """

    def __init__(
        self,
        folder: Path,
        what: str = "index",
        require_own: Callable[[Path], None] | None = None,
    ) -> None:
        (require_own or _require_own)(folder)
        self.folder, self.what, self.owner = folder, what, os.getpid()
        self._handle = _locked(folder, what)

    @property
    def mine(self) -> bool:
        """Whether this process took the lock; a forked child did not."""
        return os.getpid() == self.owner

    def require_mine(self) -> None:
        """Raise IndexFilesError in a forked child."""
        if not self.mine:
            raise IndexFilesError(
                f"{self.folder} was opened before a fork; open it in one process: change the "
                f"{self.what} in process {self.owner} alone, or close it there first and open it "
                "here"
            )

    def require_there(self) -> None:
        """Raise IndexFilesError if the folder or its lock is not the one that was opened."""
        held = os.fstat(self._handle)
        try:
            there = os.stat(self.folder / "lock")
        except (FileNotFoundError, NotADirectoryError):
            there = None
        if there is None or (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise IndexFilesError(
                f"{self.folder} or the lock in it was removed or replaced while the {self.what} "
                f"was open, so that nothing more can be kept there; close the {self.what}, restore "
                "the folder from a copy, or open another"
            )

    def release(self) -> None:
        """Let others open the folder; in a forked child, drop its share of the lock alone."""
        if self._handle < 0:
            return
        if self.mine:
            import fcntl

            fcntl.flock(self._handle, fcntl.LOCK_UN)  # closing is not enough while children live
        os.close(self._handle)
        self._handle = -1


def article(what: str) -> str:
    """Return a word with its article."""
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def _require_own(folder: Path) -> None:
    """Raise IndexFilesError unless the folder is empty, or an index's."""
    found = list(folder.iterdir())
    own = [path for path in found if OWN.fullmatch(path.name) or path.name == "lock"]
    for path in own:
        if not path.is_file() and os.path.lexists(path):  # not one that is gone meanwhile
            raise IndexFilesError(
                f"{path} is no file, so that {folder} is no folder of an index; "
                "move it away, or choose another folder"
            )
    if any(LOGS.fullmatch(path.name) for path in found):
        return
    other = [path for path in found if not OWN.fullmatch(path.name) and not _own_lock(path)]
    if other:
        raise IndexFilesError(
            f"{folder} holds {min(other).name} and no index; choose an empty folder, or a new one"
        )


def _own_lock(path: Path) -> bool:
    if path.name != "lock":
        return False
    with path.open("rb") as file:
        return re.fullmatch(rb"([0-9]+\n)?", file.read(32)) is not None


def _locked(folder: Path, what: str) -> int:
    """Return the open lock file of a folder, locked for this process and all others."""
    try:
        import fcntl
    except ModuleNotFoundError as error:
        raise IndexFilesError(
            f"{folder} cannot be locked on {sys.platform}, which has no fcntl; "
            f"keep the {what} in memory alone (folder=None), or use Linux or macOS"
        ) from error
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        who = "this process" if owner == str(os.getpid()) else f"process {owner}"
        raise IndexFilesError(
            f"{folder} is in use by {article(what)} of {who}; close that one, or choose another "
            "folder"
        ) from error
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode())
    return handle
