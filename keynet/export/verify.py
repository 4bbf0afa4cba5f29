"""Verify an export: ``python -m keynet.export.verify FOLDER``; exit code 1 when it fails."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keynet.export.graphs import read_graph
from keynet.export.loader import (
    GOLDEN_TOLERANCE,
    KeyEncoder,
    golden_requests,
    load_key_model,
    read_file,
)
from keynet.export.manifest import MODEL, ONNX, PT2, ArtefactError, Manifest, read_manifest
from keynet.export.trained_on import TRAINED_ON, unpacked
from keynet.hashing.aot import FOLDER, INDEX, check_kernel, described
from keynet.hashing.aot import FORMAT as KERNELS_FORMAT


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
            report(True, f"{FOLDER}: {_kernels(manifest, folder)}")
        except ArtefactError as error:
            report(False, str(error))
    if TRAINED_ON in manifest.files:
        try:
            numbers = unpacked(read_file(folder, manifest, TRAINED_ON))
            report(True, f"{TRAINED_ON}: {len(numbers):,} pictures, and texts without one")
        except ArtefactError as error:
            report(False, str(error))
    return failures


def _kernels(manifest: Manifest, folder: str | Path) -> str:
    """Return which kernels an export carries; each has its files, and they are as it says."""
    space = manifest.key_space
    try:
        content = json.loads(read_file(folder, manifest, INDEX))
        told = (content["format"], content["dim"], content["bits"])
        kernels = [
            (kernel, str(kernel["kernel"]), str(kernel["ptx"]), str(kernel["cubin"]))
            for kernel in content["kernels"]
        ]
        targets = sorted({described(kernel).target for kernel, *_ in kernels})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtefactError(f"{INDEX} does not list kernels ({error!r}); export again") from error
    if told != (KERNELS_FORMAT, space.dim, space.bits):
        raise ArtefactError(
            f"{INDEX} has format, width and bits {told}; "
            f"expected {(KERNELS_FORMAT, space.dim, space.bits)}"
        )
    for kernel, name, *pair in kernels:
        for file in pair:
            if file not in manifest.files:
                raise ArtefactError(f"{INDEX} names {file}, which files does not list")
        files = [read_file(folder, manifest, file) for file in pair]
        try:
            check_kernel(kernel, *files)
        except ValueError as error:
            where = f"{name} for {kernel['target']}"
            raise ArtefactError(f"{where}: {error}; export again") from error
    return f"{len({name for _, name, *_ in kernels})} kernels for {', '.join(targets)}"


def _golden_flips(encoder: KeyEncoder, name: str, folder: str | Path) -> int:
    """Return how many bits of the golden codes another format gives otherwise."""
    manifest = encoder.manifest
    graph = read_graph(name, read_file(folder, manifest, name))
    pictures = {g.image for g in manifest.golden if g.image is not None}
    files = {file: read_file(folder, manifest, file) for file in pictures}
    batch = encoder.preprocessor(golden_requests(manifest.golden, files))
    golden, space = manifest.golden, manifest.key_space
    try:
        output = graph(*batch[:4])
        shapes = [tuple(tensor.shape) for tensor in (output.key, output.logits, output.alignment)]
    except Exception as error:  # what a graph of another kind ends in is the runtime's own
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise ArtefactError(f"{name} does not run as a key model ({reason})") from error
    count = len(golden)
    if shapes != [(count, space.dim), (count, space.bits), (count,)]:
        raise ArtefactError(f"{name} gives key, logits and alignment {shapes} of {count} requests")
    codes = np.packbits(output.logits.numpy() >= 0, axis=1)
    wanted = np.stack([np.frombuffer(bytes.fromhex(g.code), np.uint8) for g in golden])
    for i, one in enumerate(golden):
        alignment = np.nan if one.alignment is None else one.alignment
        for what, mine, theirs in (
            ("key", output.key[i], one.key), ("alignment", output.alignment[i], alignment)
        ):  # fmt: skip
            if not np.allclose(mine, theirs, rtol=0, atol=GOLDEN_TOLERANCE, equal_nan=True):
                raise ArtefactError(f"{name} gives another {what} of golden request {i}")
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
