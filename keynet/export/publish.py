"""The folder of an export: built beside its place, and moved there whole."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from keynet.export.manifest import MANIFEST, ArtefactError, read_manifest


def check_target(target: Path) -> None:
    """Raise when something other than an export is in the way, or files beside it."""
    if target.is_symlink():
        raise ArtefactError(f"{target} is a link; give the folder itself")
    if target.exists() and not target.is_dir():
        raise ArtefactError(f"{target} is a file; give a folder")
    if not target.is_dir():
        return
    there = {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()}
    if not there:
        return
    try:
        known = {MANIFEST, *read_manifest(target).files}
    except ArtefactError as error:
        raise ArtefactError(
            f"{target} holds files that are no export; give another folder"
        ) from error
    if others := sorted(there - known):
        raise ArtefactError(
            f"{target} holds {others[0]}, which its export does not list and a new one would "
            "remove; move it, or give another folder"
        )


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
    """Move a complete folder to its place; the export that was there goes, or stays on failure."""
    check_target(target)  # again: it may have been filled meanwhile
    if not target.exists():
        complete.rename(target)
        return
    retired = folder_beside(target)
    target.rename(retired / "export")
    try:
        complete.rename(target)
    except OSError:
        (retired / "export").rename(target)
        raise
    finally:
        shutil.rmtree(retired, ignore_errors=True)
