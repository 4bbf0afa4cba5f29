"""Photographs with captions from tar shards, in the layout that img2dataset writes.

A shard is one uncompressed tar. Members whose names are equal up to the first dot belong to one
photograph, adjacent or not: ``NAME.jpg`` (jpeg, png, webp) and ``NAME.json`` with ``captions``, a
list, or ``caption``, one text; or ``NAME.txt`` with one caption, which is read where the JSON has
none. Other extensions and names without one are ignored.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.file_patterns import find_files
from data.json_objects import unique_keys
from data.photographs import (
    BrokenPhotographError,
    Photograph,
    check_image,
    check_name,
    check_share,
    whole_captions,
    without_broken,
)

IMAGES = ("jpg", "jpeg", "png", "webp")
MEMBER = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")  # webdataset's key and extension
BLOCK = tarfile.BLOCKSIZE
CHUNK = 1 << 20

Members = list[tuple[str, bytes]]  # lower-case extension, content


def read_shards(
    paths: str | Path | Sequence[str | Path], max_broken: float = 0.01
) -> list[Photograph]:
    """Return the photographs of all shards, sorted by shard and name.

    A photograph that is not whole is skipped with a warning: no image or one that does not decode,
    no caption or an empty one, JSON that cannot be read, a text or a name that is not Unicode, a
    name that comes twice.

    Args:
        paths: Files, globs or numbered ranges such as ``train-{00..02}.tar``.
        max_broken: Share of the photographs that may be skipped, in [0, 1).

    Raises:
        FileNotFoundError: When a path or pattern matches no file.
        ValueError: When more photographs are broken, or a shard is no tar, cut off or empty.
    """
    check_share(max_broken)
    shards = {path: _members(path) for path in find_files(paths, "shard")}
    copies = Counter(name for members in shards.values() for name in members)
    found: list[Photograph] = []
    broken: dict[str, str] = {}
    for path, members in shards.items():
        for name, parts in members.items():
            try:
                if copies[name] > 1:
                    raise BrokenPhotographError("in several shards: rename the members of one")
                check_name(name)
                found.append(Photograph(name, _image(parts), _captions(parts), path.name))
            except BrokenPhotographError as error:
                broken[name] = f"{name} in {path.name}: {error}"
    return without_broken(found, broken, max_broken, "mend the shards")


def _members(path: Path) -> dict[str, Members]:
    """Return the members of one shard by photograph.

    Raises:
        ValueError: When it is no tar, cut off, goes on behind its end mark, or holds no photograph.
    """
    members: dict[str, Members] = defaultdict(list)
    end, size = 0, path.stat().st_size
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                end = member.offset_data
                if not member.isfile():
                    continue
                end += -(-member.size // BLOCK) * BLOCK
                if end > size:
                    break
                written = MEMBER.fullmatch(member.name)
                if written is not None:
                    content = tar.extractfile(member)
                    assert content is not None  # of a regular file
                    members[written[1]].append((written[2].lower(), content.read()))
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{path} is no uncompressed tar, or is cut off ({error}); copy it again"
        ) from error
    # At a damaged header, or at the end of the file, tarfile stops as it does at the end mark.
    with path.open("rb") as file:
        file.seek(min(end, size))
        first = file.read(BLOCK)
        more = any(any(part) for part in iter(lambda: file.read(CHUNK), b""))
    if len(first) < BLOCK or any(first):
        raise ValueError(f"{path} is cut off or damaged at byte {end:,}; copy it again")
    if more:
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
        raise BrokenPhotographError("several images" if images else "no image")
    check_image(images[0])
    return images[0]


def _captions(parts: Members) -> tuple[str, ...]:
    """Return the captions without white space around them."""
    written = [_of_json(content) for extension, content in parts if extension == "json"]
    texts = [_decoded(content) for extension, content in parts if extension == "txt"]
    if len(written) > 1 or len(texts) > 1:
        raise BrokenPhotographError("captions twice")
    return whole_captions(written[0] if written and written[0] != [] else texts)


def _of_json(content: bytes) -> Any:
    """Return what a JSON member has as captions; none where it has neither key, or null."""
    text = _decoded(content)
    try:
        known = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        raise BrokenPhotographError(f"JSON that cannot be read ({error})") from error
    if not isinstance(known, dict):
        raise BrokenPhotographError(f"JSON that is a {type(known).__name__}, not an object")
    captions = known.get("captions")
    if captions is None:
        return [] if known.get("caption") is None else [known["caption"]]
    return captions


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BrokenPhotographError("a text that is not UTF-8") from error
