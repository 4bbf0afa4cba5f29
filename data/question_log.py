"""Questions about pictures, with their answers, from Parquet files to a chat log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from data.file_patterns import find_files
from data.parquet_rows import Column, read_rows


def write_question_log(
    paths: str | Path | Sequence[str | Path],
    path: Path,
    *,
    image: str = "image",
    question: str = "question",
    answer: str = "answer",
    model: str = "parquet",
) -> int:
    """Write a line for each row as ``data.chat_log.ChatLog`` reads it, and return how many.

    Each picture is kept once in the folder ``STEM_pictures`` beside the log. Nothing is judged
    here: a row that cannot be used is a line that the chat log counts by its reason. A row without
    a picture is a question without one.

    Args:
        paths: Parquet files, globs or numbered ranges.
        path: The log.
        image: Column of the pictures, ``{bytes, path}`` or their bytes.
        question: Column of the questions.
        answer: Column of the answers.
        model: Whom the log names as the one who answered: part of the scope.

    Raises:
        FileExistsError: The log is there already, or another run writes it.
        FileNotFoundError: A path or pattern matches no file.
        ModuleNotFoundError: Without pyarrow.
        ValueError: A file is no Parquet, is damaged, has no rows, a text that is not UTF-8 or no
            such columns.
        OSError: The log or a picture cannot be written.
    """
    columns = (
        Column(image, "--image", "picture"),
        Column(question, "--question", "text"),
        Column(answer, "--answer", "text"),
    )
    if path.exists():
        raise FileExistsError(f"{path} is there already; give another name, or move it")
    files = find_files(paths, "Parquet file")
    same_names = len({found.name for found in files}) < len(files)
    pictures = path.with_name(f"{path.stem}_pictures")
    lines = 0
    try:
        with _whole(path) as file:
            for found in files:
                name = found if same_names else found.name
                rows = enumerate(read_rows(found, columns), start=1)
                for number, (picture, asked, answered) in rows:
                    line = _line(_url(picture, pictures), asked, answered)
                    line |= {"id": f"{name} {number}", "model": model}
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    lines += 1
    except OSError as error:
        if error.filename is None and error.errno is None:  # a line of our own
            raise
        raise OSError(
            error.errno, f"cannot be written ({error.strerror}); make room, or give another place",
            str(path),
        ) from error  # fmt: skip
    return lines


@contextmanager
def _whole(path: Path) -> Iterator[TextIO]:
    """Open a file that is there once all is written: half a log would be taken for a whole one."""
    part = path.with_name(f"{path.name}.part")
    try:
        file = part.open("x", encoding="utf-8")
    except FileExistsError as error:
        raise FileExistsError(
            f"{part} is there: another run writes the log, or was killed; then remove that file"
        ) from error
    try:
        with file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _line(url: str | None, question: str | None, answer: str | None) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [] if question is None else [{"type": "text", "text": question}]
    if url is not None:
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {"messages": [{"role": "user", "content": parts}], "response": answer}


def _url(picture: Any, pictures: Path) -> str | None:
    """Return where the log finds a picture: its kept bytes, or the path that stands for them."""
    content = picture.get("bytes") if isinstance(picture, dict) else picture
    if content is None:
        return picture.get("path") if isinstance(picture, dict) else None
    file = pictures / hashlib.sha256(content).hexdigest()
    if file.is_symlink() or not file.is_file() or file.read_bytes() != content:
        pictures.mkdir(exist_ok=True)
        part = pictures / f".{file.name}.part"
        part.write_bytes(content)
        part.replace(file)
    return f"{pictures.name}/{file.name}"
