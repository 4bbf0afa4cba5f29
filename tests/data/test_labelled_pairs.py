from __future__ import annotations

import json
from pathlib import Path

import pytest

from data.labelled_pairs import read_pairs, write_pairs
from keynet.types import Request

REQUESTS = [
    Request(text=f"question {number}", response="größer", tags={"id": name})
    for number, name in enumerate(("x", "y", "w", "w"))
]


def test_pairs_are_written_labelled_and_read(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    write_pairs([(1, 0), (0, 1)], REQUESTS, path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {
        "a": "y", "b": "x", "same": None, "a_text": "question 1", "b_text": "question 0",
        "answer": "größer",
    }  # fmt: skip
    assert read_pairs(path, REQUESTS) == []
    # As an editor of Windows saves it.
    lines[0]["same"] = False
    saved = "\r\n".join(json.dumps(line) for line in lines)
    path.write_text(saved, encoding="utf-8-sig", newline="")
    assert read_pairs(path, REQUESTS) == [(1, 0, False)]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"{", 'line 1: expected {"a": ID, "b": ID, "same": true or false}'),
        (b'{"a": "\xf6"}', "line 1: expected"),
        (b"[" * 100_000, "line 1: expected"),
        (b'{"a": "x", "b": "y", "same": true, "same": false}', "line 1: expected"),
        (b'{"a": "x", "b": "y"}', "line 1: expected"),
        (b'{"a": "x", "b": "y", "same": "no"}', "line 1: same='no', expected true or false"),
        (b'{"a": "x", "b": "z", "same": true}', "line 1: no usable line has the id 'z'"),
        (b'{"a": "x", "b": "w", "same": true}', "line 1: several requests have the id 'w'"),
    ],
)
def test_pairs_that_cannot_be_read(tmp_path: Path, written: bytes, message: str) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(written + b"\n")
    with pytest.raises(ValueError) as error:
        read_pairs(path, REQUESTS)
    assert message in str(error.value)
