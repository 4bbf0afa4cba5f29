"""Photographs with captions, whichever file lists them: what is whole, and what is skipped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.requests import Split
from keynet.pictures import open_image
from keynet.types import RequestError

logger = logging.getLogger(__name__)

SHOWN = 5  # names in a message


@dataclass(frozen=True)
class Photograph:
    """One photograph.

    Args:
        name: Names it within a data source.
        image: Its encoded bytes, or their file.
        captions: Texts that describe it.
        file: Name of the file that lists it.
        split: Where that file says so.
    """

    name: str
    image: bytes | Path
    captions: tuple[str, ...]
    file: str
    split: Split | None = None


Read = Callable[[str | Sequence[str]], list[Photograph]]  # of paths, globs or numbered ranges


class BrokenPhotographError(ValueError):
    """Why a photograph is skipped."""


def check_share(max_broken: float) -> None:
    """Raise ValueError unless it is a share of photographs that may be skipped."""
    if type(max_broken) not in (int, float) or not 0 <= max_broken < 1:
        raise ValueError(f"max_broken={max_broken}: expected a share in [0, 1)")


def warn_of_split(path: Path, columns: Collection[str]) -> None:
    """Warn of a column of splits, which no reader of tables reads."""
    if "split" in columns:
        logger.warning("%s: its column 'split' is not read; write its splits as files", path)


def check_image(image: bytes | Path) -> None:
    """Raise BrokenPhotographError unless it decodes."""
    try:
        open_image(image)
    except RequestError as error:
        raise BrokenPhotographError(str(error)) from error


def is_unicode(text: str) -> bool:
    """Whether it can be written as UTF-8: it has no lone surrogate, as JSON's ``"\\ud83d"`` is."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_name(name: str) -> None:
    """Raise BrokenPhotographError unless a photograph's name is Unicode."""
    if not is_unicode(name):
        raise BrokenPhotographError("a name that is not Unicode")


def whole_captions(captions: object) -> tuple[str, ...]:
    """Return captions without white space around them.

    Raises:
        BrokenPhotographError: It is no list of texts, there is none, or one is empty or no Unicode.
    """
    if not isinstance(captions, list) or not all(isinstance(c, str) for c in captions):
        raise BrokenPhotographError("captions that are no list of texts")
    if not captions:
        raise BrokenPhotographError("no captions")
    stripped = tuple(caption.strip() for caption in captions)
    if not all(stripped):
        raise BrokenPhotographError("an empty caption")
    if not all(map(is_unicode, stripped)):
        raise BrokenPhotographError("a caption that is not Unicode")
    return stripped


def without_broken(
    found: Sequence[Photograph], broken: Mapping[str, str], max_broken: float, mend: str
) -> list[Photograph]:
    """Return the whole photographs, sorted by file and name, and warn of the broken ones.

    Args:
        found: Whole ones.
        broken: Of each other, by what tells it from all others, where it is and why it is broken.
        max_broken: Share of all that may be broken.
        mend: What to do when more are.

    Raises:
        ValueError: More are.
    """
    if broken:
        total = len(found) + len(broken)
        message = f"{len(broken):,} of {total:,} photographs are broken ("
        message += "; ".join(broken[name] for name in sorted(broken)[:SHOWN])
        message += "; …)" if len(broken) > SHOWN else ")"
        message = message.encode("utf-8", "backslashreplace").decode()  # names that are no Unicode
        if len(broken) > max_broken * total:
            raise ValueError(f"{message}: more than max_broken={max_broken}; {mend}")
        logger.warning("%s: they are skipped", message)
    return sorted(found, key=lambda p: (p.file, p.name))
