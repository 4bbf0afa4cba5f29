"""Verify an export: ``python -m keynet.export.verify FOLDER``; exit code 1 when it fails."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keynet.export.graphs import read_graph
from keynet.export.loader import KeyEncoder, golden_requests, load_key_model, read_file
from keynet.export.manifest import MODEL, ONNX, PT2, ArtefactError, Manifest, read_manifest
from keynet.hashing.aot import FOLDER, INDEX


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
        encoder = load_key_model(folder, device)
    except ValueError as error:
        report(False, str(error))
        return failures
    requests = f"{len(manifest.golden)} golden requests"
    report(True, f"{MODEL}: {requests}, {encoder.golden_flips} bits differ on {device}")
    for name in (PT2, ONNX):
        if name in manifest.files:
            try:
                flips = _golden_flips(encoder, name, folder)
                report(flips == 0, f"{name}: {requests}, {flips} bits differ on cpu")
            except ArtefactError as error:
                report(False, str(error))
            except ModuleNotFoundError as error:
                print(f"skip  {error}")
    if INDEX in manifest.files:
        try:
            report(True, f"{FOLDER}: {_kernels(manifest, read_file(folder, manifest, INDEX))}")
        except ArtefactError as error:
            report(False, str(error))
    return failures


def _kernels(manifest: Manifest, index: bytes) -> str:
    """Return which kernels an export carries; each has its files, and the key space's widths."""
    space = manifest.key_space
    try:
        content = json.loads(index)
        widths = (content["dim"], content["bits"])
        files = [kernel[kind] for kernel in content["kernels"] for kind in ("ptx", "cubin")]
        targets = sorted({kernel["target"] for kernel in content["kernels"]})
        names = {kernel["kernel"] for kernel in content["kernels"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ArtefactError(f"{INDEX} does not list kernels ({error!r}); export again") from error
    if widths != (space.dim, space.bits):
        raise ArtefactError(
            f"{INDEX} is for keys and codes {widths} wide; expected {(space.dim, space.bits)}"
        )
    if missing := [file for file in files if file not in manifest.files]:
        raise ArtefactError(f"{INDEX} names {missing[0]}, which files does not list; export again")
    return f"{len(names)} kernels for {', '.join(targets)}"


def _golden_flips(encoder: KeyEncoder, name: str, folder: str | Path) -> int:
    """Return how many bits of the golden codes another format gives otherwise."""
    manifest = encoder.manifest
    files = {file: read_file(folder, manifest, file) for file in manifest.files}
    graph = read_graph(name, files[name])
    batch = encoder.preprocessor(golden_requests(manifest.golden, files))
    try:
        logits = graph(*batch[:4]).logits.numpy()
    except Exception as error:  # what a graph of another kind ends in is the runtime's own
        reason = str(error).strip().splitlines()[-1]
        raise ArtefactError(f"{name} does not run as a key model ({reason})") from error
    codes = np.packbits(logits >= 0, axis=1)
    wanted = np.stack([np.frombuffer(bytes.fromhex(g.code), np.uint8) for g in manifest.golden])
    if codes.shape != wanted.shape:
        raise ArtefactError(f"{name} gives codes {codes.shape}; expected {wanted.shape}")
    return int(np.bitwise_count(codes ^ wanted).sum())


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
