"""Photographs with captions from tar shards, in the layout that img2dataset writes.

A shard is one uncompressed tar. Members whose names are equal up to the first dot belong to one
photograph, adjacent or not: ``NAME.jpg`` (jpeg, png, webp) and ``NAME.json`` with ``captions``, a
list, or ``caption``, one text; or ``NAME.txt`` with one caption, which is read where the JSON has
none. Other extensions and names without one are ignored.
"""

from __future__ import annotations

import glob
import json
import logging
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keynet.pictures import open_image
from keynet.types import RequestError

logger = logging.getLogger(__name__)

IMAGES = ("jpg", "jpeg", "png", "webp")
MEMBER = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")  # webdataset's key and extension
BLOCK = tarfile.BLOCKSIZE
SHOWN = 5  # names in a message

Members = list[tuple[str, bytes]]  # lower-case extension, content


@dataclass(frozen=True)
class Photograph:
    """One photograph: its name in the shard, encoded bytes, captions and the shard's file name."""

    name: str
    image: bytes
    captions: tuple[str, ...]
    shard: str


class _BrokenError(ValueError):
    """Why a photograph is skipped."""


def read_shards(
    paths: str | Path | Sequence[str | Path], max_broken: float = 0.01
) -> list[Photograph]:
    """Return the photographs of all shards, sorted by shard and name.

    A photograph that is not whole is skipped with a warning: no image or one that does not decode,
    no caption or an empty one, JSON that cannot be read, a name that comes twice.

    Args:
        paths: Files, globs or numbered ranges such as ``train-{00..02}.tar``.
        max_broken: Share of the photographs that may be skipped, in [0, 1).

    Raises:
        FileNotFoundError: When a path or pattern matches no file.
        ValueError: When more photographs are broken, or a shard is no tar, cut off or empty.
    """
    if not 0 <= max_broken < 1:
        raise ValueError(f"max_broken={max_broken}: expected a share in [0, 1)")
    shards = {path: _members(path) for path in find_shards(paths)}
    copies = Counter(name for members in shards.values() for name in members)
    found: list[Photograph] = []
    broken: dict[str, str] = {}
    for path, members in shards.items():
        for name, parts in members.items():
            try:
                if copies[name] > 1:
                    raise _BrokenError("in several shards")
                found.append(Photograph(name, _image(parts), _captions(parts), path.name))
            except _BrokenError as error:
                broken[name] = f"{name} in {path.name}: {error}"
    if broken:
        total = len(found) + len(broken)
        message = f"{len(broken):,} of {total:,} photographs are broken ("
        message += "; ".join(broken[name] for name in sorted(broken)[:SHOWN])
        message += "; …)" if len(broken) > SHOWN else ")"
        if len(broken) > max_broken * total:
            raise ValueError(f"{message}: more than max_broken={max_broken}; mend the shards")
        logger.warning("%s: they are skipped", message)
    return sorted(found, key=lambda p: (p.shard, p.name))


def find_shards(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the files that paths, globs and numbered ranges name, each once, sorted.

    Raises:
        FileNotFoundError: When one of them matches no file.
    """
    patterns = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not patterns:
        raise FileNotFoundError("no shards: the list of paths is empty; give at least one tar")
    found: set[Path] = set()
    for pattern in patterns:
        for name in _numbered(str(pattern)):
            matched = [name] if Path(name).exists() else glob.glob(name, recursive=True)
            files = {Path(match) for match in matched if Path(match).is_file()}
            if not files:
                raise FileNotFoundError(f"no shard at {name!r}; check the path or pattern")
            found |= files
    return sorted(found)


def _numbered(pattern: str) -> list[str]:
    """Expand the ranges ``{first..last}``, both ends included, to the width of the first."""
    written = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if written is None:
        return [pattern]
    first, last = written.groups()
    if int(first) > int(last):
        raise ValueError(f"{pattern!r}: the range {written[0]} goes down; write the smaller first")
    head, tail = pattern[: written.start()], _numbered(pattern[written.end() :])
    numbers = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return [head + number + rest for number in numbers for rest in tail]


def _members(path: Path) -> dict[str, Members]:
    """Return the members of one shard by photograph.

    Raises:
        ValueError: When it is no tar, cut off, goes on behind its end mark, or holds no photograph.
    """
    members: dict[str, Members] = defaultdict(list)
    end = 0
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                end = member.offset_data
                if not member.isfile():
                    continue
                end += -(-member.size // BLOCK) * BLOCK
                written = MEMBER.fullmatch(member.name)
                if written is not None:
                    content = tar.extractfile(member)
                    assert content is not None  # of a regular file
                    members[written[1]].append((written[2].lower(), content.read()))
    except tarfile.TarError as error:
        raise ValueError(
            f"{path} is no uncompressed tar, or is cut off ({error}); copy it again"
        ) from error
    # At a damaged header, or at the end of the file, tarfile stops as it does at the end mark.
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read()
    if len(rest) < BLOCK or any(rest[:BLOCK]):
        raise ValueError(f"{path} is cut off or damaged at byte {end:,}; copy it again")
    if any(rest):
        raise ValueError(
            f"{path} goes on behind its end mark at byte {end:,}, as tars put together with cat "
            "do; unpack and pack it again"
        )
    if not members:
        raise ValueError(f"{path} holds no photograph; expected members NAME.jpg and NAME.json")
    return members


def _image(parts: Members) -> bytes:
    images = [content for extension, content in parts if extension in IMAGES]
    if len(images) != 1:
        raise _BrokenError("several images" if images else "no image")
    try:
        open_image(images[0])
    except RequestError as error:
        raise _BrokenError(str(error)) from error
    return images[0]


def _captions(parts: Members) -> tuple[str, ...]:
    """Return the captions without white space around them."""
    written = [_of_json(content) for extension, content in parts if extension == "json"]
    texts = [_decoded(content) for extension, content in parts if extension == "txt"]
    if len(written) > 1 or len(texts) > 1:
        raise _BrokenError("captions twice")
    captions = written[0] if written and written[0] else texts
    if not captions:
        raise _BrokenError("no captions")
    stripped = tuple(caption.strip() for caption in captions)
    if not all(stripped):
        raise _BrokenError("an empty caption")
    return stripped


def _of_json(content: bytes) -> list[str]:
    """Return the captions of a JSON member; none where it has neither key, or null."""
    try:
        known = json.loads(_decoded(content))
    except json.JSONDecodeError as error:
        raise _BrokenError(f"JSON that cannot be read ({error})") from error
    if not isinstance(known, dict):
        raise _BrokenError(f"JSON that is a {type(known).__name__}, not an object")
    captions = known.get("captions")
    if captions is None:
        captions = [] if known.get("caption") is None else [known["caption"]]
    if not isinstance(captions, list) or not all(isinstance(c, str) for c in captions):
        raise _BrokenError("captions that are no list of texts")
    return captions


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _BrokenError("a text that is not UTF-8") from error
