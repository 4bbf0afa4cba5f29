"""Caption files: which picture has which captions.

* COCO's ``captions_*.json``: ``images`` with ``id`` and ``file_name``, ``annotations`` with
  ``image_id`` and ``caption``.
* Karpathy's ``dataset_*.json``: ``images`` with ``filename`` (and ``filepath``, its folder),
  ``sentences`` with ``raw``, and ``split``; all but ``test`` is trained on.
* Flickr's ``*.token.txt``: lines ``NAME.jpg#0``, a tab, a caption.
* Flickr's ``captions.txt`` and ``results.csv``: columns ``image,caption`` or
  ``image_name| comment_number| comment``, under that header.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.json_objects import unique_keys
from data.log_file import UTF_16
from data.photographs import is_unicode, warn_of_split
from data.requests import Split

EXPECTED = (
    "expected COCO's captions_*.json, Karpathy's dataset_*.json, or a text file with lines "
    "NAME.jpg#0<TAB>CAPTION or the header image,caption or image_name|comment_number|comment"
)
KARPATHY: dict[str, Split] = {
    "train": "train", "restval": "train", "val": "train", "test": "test",
}  # fmt: skip
TOKEN = re.compile(r"(.+)#\d+\t(.*)")
NAMES, TEXTS = ("image", "image_name"), ("caption", "comment")  # of columns


@dataclass
class CaptionLists:
    """The captions of one picture as they are written, its split, or why it cannot be used.

    What is not ``named`` names no picture and stands under its place in the file.
    """

    texts: list[Any] = field(default_factory=list)
    split: Split | None = None
    broken: str | None = None
    named: bool = True


Listed = dict[str, CaptionLists]  # by the picture's file name
Row = tuple[str | None, str | None]  # a picture's file name and a caption


def read_caption_file(path: Path) -> Listed:
    """Return the captions of each picture by its file name.

    What names no picture stands under its place, such as ``line 7``, with the reason.

    Raises:
        ValueError: It is empty, cannot be read as a whole, or is of none of these kinds.
    """
    content = path.read_bytes()
    if content.startswith(UTF_16):
        raise ValueError(f"{path} is UTF-16; save it as UTF-8")
    content = content.removeprefix(codecs.BOM_UTF8)
    if not content.strip():
        raise ValueError(f"{path} is empty; {EXPECTED}")
    is_json = content.lstrip().startswith((b"{", b"["))
    listed = _of_json(path, content) if is_json else _of_lines(path, content)
    if not listed:
        raise ValueError(f"{path} lists no picture; {EXPECTED}")
    return listed


def _of_json(path: Path, content: bytes) -> Listed:
    try:
        known = json.loads(content.decode("utf-8"), object_pairs_hook=unique_keys)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start:,})") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        raise ValueError(
            f"{path} is no JSON that can be read, or is cut off ({error}); copy it again"
        ) from error
    images = known.get("images") if isinstance(known, dict) else None
    if not isinstance(images, list):
        raise ValueError(f"{path} is JSON without a list of images; {EXPECTED}")
    if any(isinstance(image, dict) and "sentences" in image for image in images):
        return _of_karpathy(images)
    annotations = known.get("annotations")
    if not isinstance(annotations, list) or not any(
        isinstance(annotation, dict) and "caption" in annotation for annotation in annotations
    ):
        raise ValueError(f"{path} has images without captions, as instances_*.json; {EXPECTED}")
    return _of_coco(images, annotations)


def _of_coco(images: list[Any], annotations: list[Any]) -> Listed:
    listed: Listed = {}
    of_id: Listed = {}
    for number, image in enumerate(images, start=1):
        name, key = (image.get(k) if isinstance(image, dict) else None for k in ("file_name", "id"))
        if not (isinstance(name, str) and name and isinstance(key, (int, str))):
            listed[f"image number {number}"] = _unnamed("no file_name and id")
            continue
        one = _add(listed, name)
        if str(key) in of_id:
            of_id[str(key)].broken = one.broken = f"another picture has its id {key}"
        of_id[str(key)] = one
    for number, annotation in enumerate(annotations, start=1):
        key = annotation.get("image_id") if isinstance(annotation, dict) else None
        if not isinstance(key, (int, str)):
            listed[f"annotation number {number}"] = _unnamed("no image_id")
        elif str(key) not in of_id:
            unknown = _unnamed("its captions are there, it is not among the images")
            listed.setdefault(f"image id {key}", unknown)
        else:
            of_id[str(key)].texts.append(annotation.get("caption"))
    return listed


def _of_karpathy(images: list[Any]) -> Listed:
    listed: Listed = {}
    for number, image in enumerate(images, start=1):
        known: Mapping[str, Any] = image if isinstance(image, dict) else {}
        name, folder, split = (known.get(k) for k in ("filename", "filepath", "split"))
        sentences = known.get("sentences")
        if not (isinstance(name, str) and name and isinstance(sentences, list)):
            listed[f"image number {number}"] = _unnamed("no filename and sentences")
            continue
        one = _add(listed, f"{folder}/{name}" if folder else name)
        one.texts = [s.get("raw") if isinstance(s, dict) else None for s in sentences]
        if isinstance(split, str) and split in KARPATHY:
            one.split = KARPATHY[split]
        elif one.broken is None:
            one.broken = f"split {split!r}, expected one of {', '.join(KARPATHY)}"
    return listed


def _add(listed: Listed, name: str) -> CaptionLists:
    """Return the entry of a picture that is listed once; a second time breaks it."""
    if name in listed:
        listed[name].broken = "listed twice"
    return listed.setdefault(name, CaptionLists())


def _unnamed(reason: str) -> CaptionLists:
    return CaptionLists(broken=reason, named=False)


def _of_lines(path: Path, content: bytes) -> Listed:
    # Bytes that are no UTF-8 are kept apart, so that they break one caption and not the file.
    decoded = (line.decode("utf-8", "surrogateescape") for line in content.splitlines())
    lines = [(number, line) for number, line in enumerate(decoded, start=1) if line.strip()]
    header = lines[0][1]
    read: Callable[[str], Row] = _token
    if not TOKEN.fullmatch(header):
        read, lines = _columns(path, header), lines[1:]
    listed: Listed = {}
    for number, line in lines:
        name, text = read(line)
        if not name or not is_unicode(name):
            listed[f"line {number}"] = _unnamed(f"no picture's name in {line[:40]!a}")
            continue
        one = listed.setdefault(name, CaptionLists())
        if text is None:
            one.broken = f"line {number} cannot be read: {line[:60]!a}"
        elif not is_unicode(text):
            one.broken = f"line {number} is not UTF-8"
        else:
            one.texts.append(text)
    return listed


def _token(line: str) -> Row:
    read = TOKEN.fullmatch(line)
    return (None, None) if read is None else (read[1], read[2])


def _columns(path: Path, header: str) -> Callable[[str], Row]:
    """Return what reads a line under this header; the last column is the caption."""
    delimiter = "|" if "|" in header else ","
    try:
        columns = next(csv.reader([header], strict=True)) if delimiter == "," else header.split("|")
    except csv.Error:
        columns = []
    columns = [column.strip().lower() for column in columns]
    named = [number for number, column in enumerate(columns) if column in NAMES]
    if len(named) != 1 or columns[-1] not in TEXTS:
        raise ValueError(f"{path} begins with {header[:60]!a}; {EXPECTED}")
    warn_of_split(path, columns)
    last = len(columns) - 1

    def read(line: str) -> Row:
        try:
            # Line by line: a quote that is never closed must not take the next captions with it.
            fields = next(csv.reader([line], strict=True)) if delimiter == "," else line.split("|")
        except csv.Error:
            return line.split(delimiter)[named[0]].strip(), None
        name = fields[named[0]].strip() if len(fields) > named[0] else None
        # A caption without quotes may have the delimiter in it.
        return name, delimiter.join(fields[last:]) if len(fields) > last else None

    return read
