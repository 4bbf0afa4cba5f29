"""Photographs with captions from Parquet files, as Hugging Face's data sets have them.

A row is a picture, ``{bytes, path}`` or its bytes, with a caption or a list of captions. Rows with
the bytes of one picture are one photograph with the captions of all, equal ones too, so that one
caption a row is read as well.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.file_patterns import find_files
from data.parquet_rows import Column, column_names, described_columns, read_rows
from data.photographs import (
    BrokenPhotographError,
    Photograph,
    check_image,
    check_share,
    warn_of_split,
    whole_captions,
    without_broken,
)

logger = logging.getLogger(__name__)

CAPTIONS = ("caption", "captions", "text")  # Hugging Face's names


def read_parquet(
    paths: str | Path | Sequence[str | Path],
    image: str = "image",
    captions: str | Sequence[str] | None = None,
    max_broken: float = 0.01,
) -> list[Photograph]:
    """Return the photographs of Parquet files, sorted by file and name.

    A photograph's name is the beginning of the SHA-256 of its bytes: paths in such files are often
    absent, or all the same. One that is not whole is skipped with a warning: no bytes or some that
    do not decode, no caption or an empty one. Beside the encoded pictures, a few rows are in memory
    at once.

    Args:
        paths: Files, globs or numbered ranges.
        image: Column of the pictures.
        captions: Column of the captions, or several; by default the one of ``CAPTIONS`` that is
            there.
        max_broken: Share of the photographs that may be skipped, in [0, 1).

    Raises:
        FileNotFoundError: When a path or pattern matches no file.
        ModuleNotFoundError: Without pyarrow.
        ValueError: When more photographs are broken, or a file is no Parquet, is cut off, is
            empty, has a text that is not UTF-8 or no such columns.
    """
    check_share(max_broken)
    first: dict[str, Photograph] = {}
    broken: dict[str, str] = {}
    repeats = 0
    for path in find_files(paths, "Parquet file"):
        rows = read_rows(path, _columns(path, image, captions))
        for number, (picture, *values) in enumerate(rows, start=1):
            content = picture.get("bytes") if isinstance(picture, dict) else picture
            texts = _listed(values)
            place = f"row {number} of {path.name}"
            if content is None:
                name = f"row {number} of {path}"  # of several folders
            else:
                name = hashlib.sha256(content).hexdigest()[:16]
            if name in broken:
                continue
            try:
                if content is None:
                    raise BrokenPhotographError("no bytes of a picture")
                known = first.get(name)
                if known is None:
                    check_image(content)
                    first[name] = Photograph(name, content, whole_captions(texts), path.name)
                    continue
                repeats += 1
                more = known.captions + whole_captions(texts)
                first[name] = replace(known, captions=more)
            except BrokenPhotographError as error:
                first.pop(name, None)
                broken[name] = f"{place}: {error}"
    if repeats:
        logger.info(
            "%s rows repeat a picture: %s photographs, with the captions of all their rows",
            f"{repeats:,}",
            f"{len(first):,}",
        )
    return without_broken([*first.values()], broken, max_broken, "mend the files")


def _columns(path: Path, image: str, captions: str | Sequence[str] | None) -> list[Column]:
    known = set(column_names(path))
    warn_of_split(path, known)
    if captions is None:
        texts = [name for name in CAPTIONS if name in known]
        if len(texts) != 1:
            raise ValueError(
                f"{path} has {'several' if texts else 'none'} of the columns "
                f"{', '.join(CAPTIONS)}: name one, data.source.read.captions=COLUMN; "
                f"{described_columns(path)}"
            )
    else:
        texts = [captions] if isinstance(captions, str) else list(captions)
    return [
        Column(image, "data.source.read.image", "picture"),
        *(Column(name, "data.source.read.captions", "texts") for name in texts),
    ]


def _listed(values: Sequence[Any]) -> list[Any]:
    """Return the captions of all columns; one that is null has none."""
    lists = [value if isinstance(value, list) else [value] for value in values if value is not None]
    return [text for texts in lists for text in texts]
