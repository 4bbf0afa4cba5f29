"""Photographs with captions from a caption file and a folder of pictures.

COCO's and Karpathy's JSON and Flickr's text files are told apart by what they hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath

from data.caption_files import CaptionLists, read_caption_file
from data.file_patterns import find_files
from data.photographs import (
    BrokenPhotographError,
    Photograph,
    check_image,
    check_name,
    check_share,
    whole_captions,
    without_broken,
)
from keynet.progress import progress_bar

MEND = (
    "mend the files, or name the folders of the pictures: data.source.read.pictures=[FOLDER, ...]"
)


def read_captions(
    paths: str | Path | Sequence[str | Path],
    pictures: str | Path | Sequence[str | Path] | None = None,
    max_broken: float = 0.01,
) -> list[Photograph]:
    """Return the photographs that caption files list, sorted by caption file and name.

    One that is not whole is skipped with a warning: its picture is missing, outside of the folders
    or does not decode; it has no caption, an empty one or one that cannot be read; it is listed
    twice. Captions of a picture that is not listed are counted as such a photograph, as is each
    place that names no picture.

    Args:
        paths: Caption files (``data.caption_files``), globs or numbered ranges.
        pictures: Folders, at least one, in which the file names of pictures are looked up; by
            default the one in which their caption file is.
        max_broken: Share of the photographs that may be skipped, in [0, 1).

    Raises:
        FileNotFoundError: When a path or pattern matches no file, or a folder is not there.
        ValueError: When more photographs are broken, a file is no caption file, or the list of
            folders is empty.
    """
    check_share(max_broken)
    folders = None if pictures is None else _folders(pictures)
    files = {path: read_caption_file(path) for path in find_files(paths, "caption file")}
    copies = Counter(n for listed in files.values() for n, one in listed.items() if one.named)
    found: list[Photograph] = []
    broken: dict[str, str] = {}
    for path, listed in files.items():
        bar = progress_bar(listed.items(), desc=f"pictures of {path.name}", unit="photo")
        for name, captions in bar:
            try:
                if copies[name] > 1:
                    raise BrokenPhotographError("in several caption files")
                found.append(_photograph(name, captions, path, folders or [path.parent]))
            except BrokenPhotographError as error:
                one = name if captions.named else f"{name} of {path}"
                broken[one] = f"{name} in {path.name}: {error}"
    return without_broken(found, broken, max_broken, MEND)


def _folders(pictures: str | Path | Sequence[str | Path]) -> list[Path]:
    named = [pictures] if isinstance(pictures, (str, Path)) else pictures
    folders = [Path(folder) for folder in named]
    if not folders:
        raise ValueError(
            "data.source.read.pictures is an empty list; name a folder, or give null for the one "
            "in which the caption file is"
        )
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(
                f"no folder of pictures at {str(folder)!r}; check data.source.read.pictures"
            )
    return folders


def _photograph(
    name: str, captions: CaptionLists, path: Path, folders: Sequence[Path]
) -> Photograph:
    if captions.broken is not None:
        raise BrokenPhotographError(captions.broken)
    check_name(name)
    texts = whole_captions(captions.texts)
    image = _picture(name, folders)
    check_image(image)
    return Photograph(name, image, texts, path.name, captions.split)


def _picture(name: str, folders: Sequence[Path]) -> Path:
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise BrokenPhotographError("its picture is outside of the folders")
    try:
        there = [folder / name for folder in folders if (folder / name).is_file()]
    except (OSError, ValueError) as error:  # a name too long, or with a NUL
        raise BrokenPhotographError("its picture has no name of a file") from error
    if len(there) != 1:
        where = ", ".join(map(str, folders))
        raise BrokenPhotographError(f"{'several pictures' if there else 'no picture'} in {where}")
    return there[0]
