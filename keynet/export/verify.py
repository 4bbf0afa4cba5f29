"""Verify an export: ``python -m keynet.export.verify FOLDER``; exit code 1 when it fails."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from keynet.export.loader import load_key_model, read_file
from keynet.export.manifest import ArtefactError, read_manifest


def verify(folder: str | Path, device: str = "cpu") -> list[str]:
    """Print a line for each file and check of an export, and return what failed."""
    failures: list[str] = []

    def report(sound: bool, line: str) -> None:
        print(f"{'ok  ' if sound else 'FAIL'}  {line}")
        if not sound:
            failures.append(line)

    try:
        manifest = read_manifest(folder)
    except ArtefactError as error:
        report(False, str(error))
        return failures
    space = manifest.key_space
    report(True, f"manifest: {space.name} v{space.version}, {space.dim} numbers, {space.bits} bits")
    for name, entry in manifest.files.items():
        try:
            read_file(folder, manifest, name)
            report(True, f"{name}: {entry.bytes:,} bytes, sha256 {entry.sha256[:16]}…")
        except ArtefactError as error:
            report(False, str(error))
    if failures:
        return failures
    try:
        flips = load_key_model(folder, device).golden_flips
        report(True, f"golden: {len(manifest.golden)} requests, {flips} bits differ on {device}")
    except ValueError as error:
        report(False, str(error))
    return failures


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify the export named on the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="keynet.export.verify", description=__doc__)
    parser.add_argument("folder", help="the export: manifest.json and the files it lists")
    parser.add_argument("--device", default="cpu", help="where to encode the golden requests")
    options = parser.parse_args(arguments)
    failures = verify(options.folder, options.device)
    if failures:
        print(f"export is not sound: {failures[0]}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
