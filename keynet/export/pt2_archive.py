"""What a torch.export archive of ours may hold, checked before torch loads it.

Loading one unpickles objects and evaluates expressions that it finds. Here it may hold tensors, and
a graph of torch's operators whose sizes are sums and products.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from keynet.export.manifest import PT2, ArtefactError

TENSOR = re.compile(r"(weight|tensor)_\d+")
ENTRY = re.compile(
    r"archive/(archive_format|archive_version|byteorder|\.data/(version|serialization_id)"
    r"|models/model\.json|data/sample_inputs/model\.pt"
    r"|data/(weights|constants)/((weight|tensor)_\d+|model_(weights|constants)_config\.json))"
)
MODEL_JSON = "archive/models/model.json"
TARGET = re.compile(
    r"torch\.ops\.aten\.\w+\.\w+|_operator\.(add|sub|mul|floordiv|mod|eq|ne|lt|le|gt|ge|getitem)"
)
SPEC = re.compile(r"builtins\.(tuple|list|dict)")
CALLED = {
    "Symbol", "Integer", "Add", "Mul", "Pow", "Max", "Min", "Mod", "FloorDiv", "CeilDiv",
    "CleanDiv", "PythonMod",
}  # fmt: skip
SYNTAX = (
    ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.Subscript,
    ast.Attribute, ast.Compare, ast.cmpop, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop,
)  # fmt: skip
DAMAGED = (
    zipfile.BadZipFile, ValueError, LookupError, TypeError, AttributeError, RecursionError,
    OSError,
)  # fmt: skip


def check_archive(content: bytes) -> None:
    """Raise ArtefactError where a torch.export archive holds anything else."""
    try:
        found = next(_strange(content), None)
    except DAMAGED as error:
        raise ArtefactError(f"{PT2} is no archive ({error}); export the model again") from error
    if found is not None:
        raise ArtefactError(f"{PT2} holds {found[:80]!r}, which is not loaded; export again")


def _strange(content: bytes) -> Iterator[str]:
    """Yield what does not belong there."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        for entry in entries:  # stored as it is, so that nothing inflates
            plain = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1
            empty = not entry.filename.endswith(".pt") or entry.file_size == 0
            if not (ENTRY.fullmatch(entry.filename) and plain and empty):
                yield entry.filename
            if names.count(entry.filename) > 1:
                yield entry.filename
        configs = [json.loads(archive.read(n)) for n in names if n.endswith("_config.json")]
        model = json.loads(archive.read(MODEL_JSON))
    for config in configs:
        for payload in config["config"].values():
            if payload["use_pickle"] or not TENSOR.fullmatch(payload["path_name"]):
                yield payload["path_name"]
    for code in model["guards_code"] or ():
        if not _arithmetic(code):
            yield code
    yield from _strange_in(model)


def _strange_in(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _strange_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name == "expr_str" and not _arithmetic(item):
                yield str(item)
            if name == "target" and not TARGET.fullmatch(item):
                yield str(item)
            if name in ("in_spec", "out_spec"):
                yield from _strange_spec(json.loads(item))
            yield from _strange_in(item)


def _strange_spec(spec: Any) -> Iterator[str]:
    """Yield types of a tree of inputs or outputs that are not plain."""
    for node in spec[1:] if isinstance(spec, list) else [spec]:
        if node["type"] is not None and not SPEC.fullmatch(node["type"]):
            yield str(node["type"])
        for child in node["children_spec"]:
            yield from _strange_spec(child)


def _arithmetic(code: str) -> bool:
    """Whether an expression only compares, adds and multiplies sizes."""
    try:
        tree = ast.parse(code, mode="eval")
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if not isinstance(node, SYNTAX):
            return False
        if isinstance(node, ast.Name) and node.id not in CALLED | {"L"}:
            return False
        if isinstance(node, ast.Attribute) and node.attr != "size":
            return False
    return True
