"""The folder of an export: built beside its place, and moved there whole.

While a new export takes an old one's place, the old one stands in a hidden folder beside it; who
is killed between the two renames leaves it there, and the next export puts it back.
"""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keynet.export.manifest import (
    MANIFEST,
    ArtefactError,
    Manifest,
    StoredThreshold,
    read_manifest,
    set_aside,
)

log = logging.getLogger(__name__)


def recover(target: Path) -> None:
    """Put back the export that an interrupted one had set aside, and name what else it left."""
    if not target.parent.is_dir():
        return
    with _alone(target.parent):  # not while another is moving its folders
        _put_back(target)
    for left in sorted(target.parent.glob(f".{glob.escape(target.name)}.*")):
        if left.is_dir():
            log.warning("%s is an export under way, or left by one; then remove it", left)


def check_target(target: Path) -> Manifest | None:
    """Return the manifest of the export that is there, None if there is none.

    Raises:
        ArtefactError: Something other than an export is in the way, or files beside it.
    """
    if target.is_symlink():
        raise ArtefactError(f"{target} is a link; give the folder itself")
    if target.exists() and not target.is_dir():
        raise ArtefactError(f"{target} is a file; give a folder")
    if not target.is_dir():
        return None
    there = {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()}
    if not there:
        return None
    try:
        manifest = read_manifest(target)
    except ArtefactError as error:
        raise ArtefactError(
            f"{target} holds files that are no export; give another folder"
        ) from error
    if others := sorted(there - {MANIFEST, *manifest.files}):
        raise ArtefactError(
            f"{target} holds {others[0]}, which its export does not list and a new one would "
            "remove; move it, or give another folder"
        )
    return manifest


def kept_thresholds(target: Path, fingerprint: str) -> list[StoredThreshold]:
    """Return the thresholds of the export that is there, where they hold for the new one.

    Args:
        target: An export, or a folder without one.
        fingerprint: Of the new one's key space.
    """
    replaced = check_target(target)
    if replaced is None:
        return []
    if replaced.parity is not None:
        log.warning("%s: parity was measured on the files before; measure it again", target)
    if replaced.key_space.fingerprint == fingerprint:
        return replaced.thresholds
    if replaced.thresholds:
        log.warning(
            "%s: its %d thresholds are of key space %s and do not hold in %s; calibrate again",
            target, len(replaced.thresholds), replaced.key_space.fingerprint, fingerprint,
        )  # fmt: skip
    return []


def folder_beside(target: Path) -> Path:
    """Return a new folder on the same disk, so that a rename publishes it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        folder.chmod(0o755)
    except OSError as error:
        raise ArtefactError(f"{target} cannot be written ({error.strerror})") from error
    return folder


def publish(complete: Path, target: Path) -> None:
    """Move a complete folder to its place; the export that was there goes, or stays on failure.

    Raises:
        ArtefactError: Something else is in the way.
        OSError: The disk refuses.
    """
    with _alone(target.parent):
        check_target(target)  # again: it may have been filled meanwhile
        aside = set_aside(target)
        if target.exists():
            target.rename(aside)
        try:
            complete.rename(target)
        except BaseException:
            if aside.exists():
                aside.rename(target)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def _put_back(target: Path) -> None:
    aside = set_aside(target)
    if aside.is_dir() and (target / MANIFEST).exists():  # the new one has its place
        shutil.rmtree(aside, ignore_errors=True)
        log.warning("%s, left by an interrupted export, was replaced and is removed", aside)
    elif aside.is_dir():
        try:
            aside.rename(target)
        except OSError as error:
            raise ArtefactError(
                f"{aside} is the export that an interrupted one would have replaced, and cannot "
                f"be put back ({error.strerror}); move what is at {target}, or that"
            ) from error
        log.warning("%s is put back: an interrupted export had set it aside", target)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other exports from moving folders in this one: two that end at once take turns."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
