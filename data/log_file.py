"""The lines of a log file, plain or packed with gzip."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

MAX_LINE = 64 * 2**20  # bytes; an inline picture of 20 MB takes 27
GZIP = b"\x1f\x8b"
DAMAGED = (EOFError, gzip.BadGzipFile, zlib.error)
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Return each line with its number from 1; None in the place of one that is too long.

    Ends of lines and a byte order mark are left out.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is packed, and the packing is damaged.
    """
    number = 0
    with ExitStack() as stack:
        file = _opened(path, stack)
        try:
            while line := file.readline(MAX_LINE):
                number += 1
                rest = line
                while len(rest) == MAX_LINE and not rest.endswith(b"\n"):
                    rest = file.readline(MAX_LINE)
                whole = line.endswith(b"\n") or len(line) < MAX_LINE
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                yield number, line.rstrip(b"\r\n") if whole else None
        except DAMAGED as error:
            raise ValueError(
                f"{path}: the gzip file is damaged or cut short after line {number:,} ({error}); "
                "pack it again"
            ) from error


def format_hint(path: Path) -> str:
    """Return what a file that is no log looks like; nothing where it may be one."""
    with ExitStack() as stack:
        start = _opened(path, stack).read(64)
    if start.startswith(UTF_16) or b"\0" in start:
        return ": it is UTF-16, write UTF-8"
    start = start.removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith(b"["):
        return ": it is one array, write one object a line"
    if not start.startswith(b"{"):
        return ': expected JSON lines such as {"messages": [...], "response": "..."}'
    return ""


def _opened(path: Path, stack: ExitStack) -> BinaryIO:
    try:
        file = stack.enter_context(path.open("rb"))
        packed = file.peek(len(GZIP)).startswith(GZIP)
    except OSError as error:
        raise type(error)(
            error.errno, f"the chat log cannot be read ({error.strerror})", str(path)
        ) from error
    return cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=file))) if packed else file
