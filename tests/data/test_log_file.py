from __future__ import annotations

import codecs
import gzip
from pathlib import Path

import pytest

from data import log_file
from data.log_file import format_hint, read_lines

LINES = [b'{"a": 1}', b"", b"   ", b'{"b": 2}']
NUMBERED = list(enumerate(LINES, start=1))


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("packed", [True, False])
def test_lines_with_their_numbers(
    tmp_path: Path, end: bytes, last: bool, mark: bytes, packed: bool
) -> None:
    content = mark + end.join(LINES) + (end if last else b"")
    path = tmp_path / "log.jsonl"  # packed or not is a matter of content, not of the name
    path.write_bytes(gzip.compress(content) if packed else content)
    assert list(read_lines(path)) == NUMBERED


def test_a_line_that_is_too_long_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "MAX_LINE", 10)
    long, exact = b"x" * 25, b"y" * 9  # ten with its end
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join([long, b"a", b"x" * 10, exact, b"b", long]))
    numbered = [(1, None), (2, b"a"), (3, None), (4, exact), (5, b"b"), (6, None)]
    assert list(read_lines(path)) == numbered
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert list(read_lines(path)) == numbered


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"chat log cannot be read \(No such file"):
        list(read_lines(tmp_path / "none.jsonl"))
    with pytest.raises(IsADirectoryError, match=r"chat log cannot be read \(Is a directory"):
        list(read_lines(tmp_path))
    path = tmp_path / "log.jsonl.gz"
    whole = gzip.compress(b"\n".join(LINES * 2000))
    for damaged in (whole[:-9], whole[:3], whole[:20] + b"garbage" + whole[27:], whole + b"more"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"gz: the gzip file is damaged .* pack it again"):
            list(read_lines(path))


def test_nothing_in_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for content in (b"", gzip.compress(b"")):
        path.write_bytes(content)
        assert list(read_lines(path)) == []


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"id,question,answer\n1,what,this\n", ": expected JSON lines such as"),
        (b"[\n{},\n{}\n]\n", ": it is one array, write one object a line"),
        (gzip.compress(b"[]", mtime=0), ": it is one array"),
        ('{"a": 1}'.encode("utf-16"), ": it is UTF-16, write UTF-8"),
        ('{"a": 1}'.encode("utf-16-be"), ": it is UTF-16, write UTF-8"),
        (b'\xef\xbb\xbf {"a": 1}', ""),
    ],
)
def test_a_file_of_another_format_is_told(tmp_path: Path, content: bytes, hint: str) -> None:
    (tmp_path / "log.jsonl").write_bytes(content)
    found = format_hint(tmp_path / "log.jsonl")
    assert found.startswith(hint) and bool(found) == bool(hint)
