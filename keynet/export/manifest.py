"""The manifest of an exported key model: plain JSON, format 1, read strictly."""

from __future__ import annotations

import json
import os
import re
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from keynet.types import CODE_BITS, KeySpace

FORMAT = 1
MANIFEST = "manifest.json"
MODEL = "model.ts.pt"
TOKENIZER = "tokenizer.json"
HASH = "hash.safetensors"
PT2, ONNX = "model.pt2", "model.onnx"  # the same graph in further formats
REQUIRED_FILES = (MODEL, TOKENIZER, HASH)
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


class ArtefactError(ValueError):
    """An export that cannot be read, trusted or written; the message says why."""


@dataclass(frozen=True)
class Preprocessing:
    """How requests become tensors; what ``keynet.preprocess`` did when the model was exported."""

    image_size: int
    background: tuple[int, int, int]
    max_pixels: int
    fit: Literal["letterbox"]
    frame: Literal["first"]
    max_tokens: int
    max_text_bytes: int
    long_text: Literal["error", "fold"]
    text_form: Literal["NFC"]


@dataclass(frozen=True)
class FileEntry:
    """Digest and size of one file of the export."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class StoredThreshold:
    """A calibrated threshold, with what it holds for.

    Args:
        kind: ``fixed_store``, ``closed_loop``, ...: the one is not valid for the other.
        modalities: ``image+text``, ``image`` or ``text``: requests in which those are present.
        bits: Of the code that it compares; None for the vector.
        value: Least similarity at which an entry is accepted; None accepts nothing.
        budget: Largest share of false hits among those served.
        confidence: With which the budget holds; None where nothing is guaranteed.
        data: Data set and split it was calibrated on.
        n: Calibration queries (fixed store), or visits served in one pass over them (closed loop).
        key_space: Fingerprint of the key space.
    """

    kind: str
    modalities: str
    bits: int | None
    value: float | None
    budget: float
    confidence: float | None
    data: str
    n: int
    key_space: str


@dataclass(frozen=True)
class Golden:
    """A request and its key when the model was exported.

    Args:
        image: File of the export that holds the image's bytes; None when absent.
        text: The text; None when absent.
        code: Code in hex.
        key: D floats, rounded to 6 digits.
        alignment: Cosine of the modalities; None where one is absent.
    """

    image: str | None
    text: str | None
    code: str
    key: list[float]
    alignment: float | None


@dataclass(frozen=True)
class Parity:
    """How codes differ from those of the model, on one processor, where something else runs it.

    Args:
        variant: What runs it: a file of the export, a precision, a batch size.
        requests: Compared.
        flipped_bits: Share of all bits.
        flipped_certain_bits: How many of them have |logit| >= 1e-4: more than rounding.
        changed_codes: Share of codes with a flipped bit.
        most_flips: Flipped bits of the code with most of them.
        margin: Greatest |logit| among flipped bits.
    """

    variant: str
    requests: int
    flipped_bits: float
    flipped_certain_bits: int
    changed_codes: float
    most_flips: int
    margin: float


@dataclass(frozen=True)
class Manifest:
    """Everything about an export but the weights."""

    format: int
    key_space: KeySpace
    preprocessing: Preprocessing
    files: dict[str, FileEntry]
    thresholds: list[StoredThreshold]
    golden: list[Golden]
    attribution: list[str]
    created_by: dict[str, str]
    # Bits of each modality, first and end, where a code has such: its prefixes are then no codes.
    code_blocks: dict[str, tuple[int, int]] | None = None
    parity: list[Parity] | None = None
    # A search within it finds an entry whichever two of these made the codes.
    parity_radius: int | None = None

    def __post_init__(self) -> None:
        space = self.key_space
        if space.bits not in CODE_BITS or space.dim < 1:
            raise ArtefactError(
                f"key_space has {space.bits} bits and width {space.dim}; bits must be one of "
                f"{CODE_BITS}, the width positive"
            )
        if not re.fullmatch(r"[0-9a-f]{16}", space.fingerprint):
            raise ArtefactError(
                f"key_space.fingerprint is {space.fingerprint!r}; expected 16 hex digits"
            )
        if self.code_blocks is not None:
            _check_blocks(self.code_blocks, space.bits)
        for name in self.files:
            if not FILE_NAME.fullmatch(name) or name == MANIFEST:
                raise ArtefactError(f"files names {name!r}; expected a file inside the export")
        for name in REQUIRED_FILES:
            if name not in self.files:
                raise ArtefactError(f"files lacks {name!r}; export the model again")
        if not self.golden:
            raise ArtefactError("golden is empty; export the model with requests to verify")
        if not space.name.isprintable():
            raise ArtefactError("key_space.name has characters that cannot be printed")
        _check_parity(self.parity or (), self.parity_radius, space.bits)
        for i, golden in enumerate(self.golden):
            _check_golden(golden, f"golden[{i}]", self)
        for i, threshold in enumerate(self.thresholds):
            if threshold.key_space != space.fingerprint:
                raise ArtefactError(
                    f"thresholds[{i}] is for key space {threshold.key_space!r}, the export is "
                    f"{space.fingerprint!r}; calibrate on this export"
                )


def set_aside(folder: Path) -> Path:
    """Return where an export stands while another takes its place."""
    return folder.parent / f".{folder.name}.old"


def read_manifest(folder: str | Path) -> Manifest:
    """Return the manifest of an export.

    Raises:
        ArtefactError: When it is missing, no JSON, of a newer format, or not as format 1 has it.
    """
    path, aside = Path(folder) / MANIFEST, set_aside(Path(folder))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        mend = "give the folder of an export"
        if aside.is_dir():
            mend = f"an interrupted export set the one before aside: mv {aside} {folder}"
        raise ArtefactError(f"{path} does not exist; {mend}") from error
    except OSError as error:
        raise ArtefactError(f"{path} cannot be read ({error.strerror})") from error
    except MemoryError as error:
        raise ArtefactError(f"{path} does not fit into memory; copy the export again") from error
    except UnicodeDecodeError as error:
        raise ArtefactError(f"{path} is not JSON (not UTF-8); export the model again") from error
    try:
        return parse_manifest(text)
    except ArtefactError as error:
        raise ArtefactError(f"{path}: {error}") from error


def parse_manifest(text: str) -> Manifest:
    """Return the manifest written in a JSON text.

    Raises:
        ArtefactError: As ``read_manifest``.
    """
    try:
        content = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except ArtefactError:
        raise
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"not JSON ({error}); export the model again") from error
    if not isinstance(content, dict):
        raise ArtefactError(f"holds {_kind(content)}; expected an object")
    version = content.get("format")
    if type(version) is not int or version < 1:
        raise ArtefactError(f"format is {_shown(version)}; expected {FORMAT}")
    if version > FORMAT:
        raise ArtefactError(
            f"format is {version} and this version reads up to {FORMAT}; upgrade keynet-cache"
        )
    manifest = _build(Manifest, content, "")
    assert isinstance(manifest, Manifest)
    return manifest


def write_manifest(manifest: Manifest, folder: str | Path) -> None:
    """Write the manifest into the folder, whole or not at all.

    Raises:
        ArtefactError: When the folder cannot be written.
    """
    given = {name: value for name, value in asdict(manifest).items() if value is not None}
    text = json.dumps(given, indent=1, ensure_ascii=False, allow_nan=False)
    parse_manifest(text)  # what could not be read back is not written
    path = Path(folder) / MANIFEST
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{MANIFEST}.")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise ArtefactError(f"{path} cannot be written ({error.strerror})") from error


def set_thresholds(folder: str | Path, thresholds: Sequence[StoredThreshold]) -> Manifest:
    """Replace the thresholds of an export and return its new manifest.

    Raises:
        ArtefactError: When a threshold is for another key space, or the folder is not writable.
    """
    manifest = replace(read_manifest(folder), thresholds=list(thresholds))
    write_manifest(manifest, folder)
    return manifest


def set_parity(folder: str | Path, parity: Sequence[Parity]) -> Manifest:
    """Replace what an export says of its codes' parity and return its new manifest.

    Raises:
        ArtefactError: When the folder is not writable.
    """
    manifest = read_manifest(folder)
    radius = sum(sorted(one.most_flips for one in parity)[-2:])  # of any two
    radius = min(radius, manifest.key_space.bits)
    manifest = replace(manifest, parity=list(parity), parity_radius=radius)
    write_manifest(manifest, folder)
    return manifest


def _check_blocks(blocks: Mapping[str, tuple[int, int]], bits: int) -> None:
    spans = sorted(blocks.values())
    edges = [0, *(end for _, end in spans)]
    whole = edges == sorted(set(edges)) and edges[-1] == bits and not any(e % 8 for e in edges)
    joined = [first for first, _ in spans] == edges[:-1]
    if set(blocks) != {"image", "text"} or not (whole and joined):
        found = ", ".join(f"{name!r} at bits {a} to {b}" for name, (a, b) in blocks.items())
        raise ArtefactError(
            f"code_blocks has {found or 'nothing'}; expected 'image' and 'text', whole bytes that "
            f"together are bits 0 to {bits}"
        )


def _check_parity(parity: Sequence[Parity], radius: int | None, bits: int) -> None:
    for i, one in enumerate(parity):
        shares = 0 <= one.flipped_bits <= 1 and 0 <= one.changed_codes <= 1
        counts = one.requests > 0 <= one.flipped_certain_bits and 0 <= one.most_flips <= bits
        if not (shares and counts and one.margin >= 0):
            raise ArtefactError(f"parity[{i}] has figures that no comparison gives; measure again")
    if radius is not None and not 0 <= radius <= bits:
        raise ArtefactError(f"parity_radius is {radius}; expected 0 to {bits}")


def _check_golden(golden: Golden, place: str, manifest: Manifest) -> None:
    space = manifest.key_space
    if golden.image is None and golden.text is None:
        raise ArtefactError(f"{place} has neither image nor text")
    if golden.image is not None and golden.image not in manifest.files:
        raise ArtefactError(f"{place}.image is {golden.image!r}, which files does not list")
    if not re.fullmatch(rf"[0-9a-f]{{{space.bits // 4}}}", golden.code):
        raise ArtefactError(f"{place}.code is not {space.bits // 4} hex digits")
    if len(golden.key) != space.dim:
        raise ArtefactError(f"{place}.key has {len(golden.key)} numbers; expected {space.dim}")


def _build(kind: Any, value: Any, place: str) -> Any:
    """Return ``value`` as the annotated type, or say where it is not."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        _expect(isinstance(value, Mapping), place, "an object", value)
        hints = get_type_hints(kind)
        known = {f.name for f in fields(kind)}
        needed = {f.name for f in fields(kind) if f.default is MISSING}
        inside = f" in {place}" if place else ""
        if missing := sorted(needed - set(value)):
            raise ArtefactError(f"lacks {missing[0]!r}{inside}; export the model again")
        if unknown := sorted(set(value) - known):
            raise ArtefactError(f"unknown field {unknown[0]!r}{inside}; expected {sorted(known)}")
        dot = f"{place}." if place else ""
        given = {name: _build(hints[name], value[name], dot + name) for name in known & set(value)}
        return kind(**given)  # type: ignore[operator]
    if origin is Literal:
        wanted = " or ".join(map(repr, arguments))
        _expect(isinstance(value, str) and value in arguments, place, wanted, value)
        return value
    if origin in (Union, types.UnionType):  # only T | None is used
        return None if value is None else _build(arguments[0], value, place)
    if origin is dict:
        _expect(isinstance(value, Mapping), place, "an object", value)
        return {k: _build(arguments[1], v, f"{place}[{k!r}]") for k, v in value.items()}
    if origin in (list, tuple):
        _expect(isinstance(value, (list, tuple)), place, "a list", value)
        if origin is tuple:
            _expect(len(value) == len(arguments), place, f"{len(arguments)} values", value)
        return origin(_build(arguments[0], v, f"{place}[{i}]") for i, v in enumerate(value))
    if kind is float:
        sound = type(value) in (int, float) and abs(value) < 1e300  # false for NaN too
        _expect(sound, place, "a finite number", value)
        return float(value)
    _expect(type(value) is kind, place, {int: "an integer", str: "text"}[kind], value)
    return value


def _expect(sound: bool, place: str, wanted: str, value: Any) -> None:
    if not sound:
        raise ArtefactError(f"{place} is {_shown(value)}; expected {wanted}")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else _kind(value)


def _kind(value: Any) -> str:
    for kind, name in ((dict, "an object"), (list, "a list"), (str, "a text")):
        if isinstance(value, kind):
            return name
    return json.dumps(value)


def _no_constant(name: str) -> Any:
    raise ArtefactError(f"holds {name}, which JSON has not; export the model again")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ArtefactError(f"names {twice!r} twice; export the model again")
    return content
