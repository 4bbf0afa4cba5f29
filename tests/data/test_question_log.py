from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from data.chat_log import ChatLog
from data.picture_sources import PictureSources
from data.question_log import write_question_log

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def picture(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), (number, 0, 7)).save(buffer, "PNG")
    return buffer.getvalue()


Row = tuple[bytes | None, str | None, str | None]


def write(path: Path, rows: list[Row], **names: str) -> Path:
    columns = {
        "image": [{"bytes": content, "path": None} for content, _, _ in rows],
        "question": [asked for _, asked, _ in rows],
        "answer": [answered for _, _, answered in rows],
    }
    pq.write_table(pa.table({names.get(n, n): values for n, values in columns.items()}), path)
    return path


def rows() -> list[Row]:
    """Return two questions about each of eight pictures, the answers by turns."""
    answers = ("red", "grün")
    return [
        (picture(number), asked, answers[number % 2])
        for number in range(8)
        for asked in ("What colour is it?", "Which colour?")
    ]


def read(path: Path, tmp_path: Path) -> ChatLog:
    return ChatLog(path=path, pictures=PictureSources(kept=tmp_path / "kept"))


def test_the_log_has_each_row_and_each_picture_once(tmp_path: Path) -> None:
    write(tmp_path / "train-0.parquet", rows()[:10])
    write(tmp_path / "train-1.parquet", rows()[10:])
    log = tmp_path / "log.jsonl"
    assert write_question_log(f"{tmp_path}/train-*.parquet", log, model="vlm") == 16
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [line["response"] for line in lines] == [answered for _, _, answered in rows()]
    assert (lines[9]["id"], lines[10]["id"]) == ("train-0.parquet 10", "train-1.parquet 1")
    assert len(list((tmp_path / "log_pictures").iterdir())) == 8
    assert not list(tmp_path.glob("*.part"))
    found = read(log, tmp_path).log
    assert not found.broken and not found.unread
    for request, (content, asked, answered) in zip(found.requests, rows(), strict=True):
        assert (request.text, request.response) == (asked, answered)
        assert request.tags["picture"] == hashlib.sha256(content or b"").hexdigest()
        assert request.scope["model"] == "vlm"


def test_equivalent_is_what_the_chat_log_says(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows())
    write_question_log(tmp_path / "a.parquet", tmp_path / "log.jsonl")
    source = read(tmp_path / "log.jsonl", tmp_path)
    groups: dict[str | None, set[tuple[str | None, str | None]]] = {}
    for request in source.log.requests:
        groups.setdefault(request.group, set()).add((request.text, request.response))
    assert len(groups) == 4 and all(len(found) == 1 for found in groups.values())
    pictures = [{r.tags["picture"] for r in source.requests(s)} for s in source.shares]
    assert sum(map(len, pictures)) == len(set.union(*pictures)) == 8


def test_a_row_that_cannot_be_used_is_a_broken_line(tmp_path: Path) -> None:
    broken: list[Row] = [
        (b"no picture", "What?", "x"),
        (picture(1), None, None),
        (None, None, "x"),
        (picture(2), "What?", " "),
    ]
    write(tmp_path / "a.parquet", [*rows(), *broken, (None, "Why?", "So.")])
    write_question_log(tmp_path / "a.parquet", tmp_path / "log.jsonl")
    found = read(tmp_path / "log.jsonl", tmp_path).log
    assert {reason: numbers for reason, numbers in found.broken.by_reason().items()} == {
        "picture that cannot be decoded": [17],
        "no response": [18],
        "no text and no picture": [19],
        "response is empty": [20],
    }
    alone = found.requests[-1]
    assert (alone.image, alone.text, alone.response) == (None, "Why?", "So.")


def test_columns_of_other_names(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows(), question="query", answer="label", image="jpg")
    log = tmp_path / "log.jsonl"
    names: dict[str, Any] = {"image": "jpg", "question": "query", "answer": "label"}
    for option, name in names.items():
        with pytest.raises(ValueError, match=rf"no column '{option}': --{option}; .* {name} \("):
            write_question_log(tmp_path / "a.parquet", log, **{**names, option: option})
        assert not log.exists() and not list(tmp_path.glob("*.part"))
    assert write_question_log(tmp_path / "a.parquet", log, **names) == 16
    with pytest.raises(FileExistsError, match=r"log\.jsonl is there already; give another"):
        write_question_log(tmp_path / "a.parquet", log, **names)


def test_a_text_that_is_not_utf8_names_the_file(tmp_path: Path) -> None:
    texts = pa.array([b"What?", b"k\xfchn?"]).view(pa.string())
    columns = {"image": [picture(1)] * 2, "question": texts, "answer": ["a", "b"]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet has a text that is not UTF-8 .* 1 to 2;"):
        write_question_log(tmp_path / "a.parquet", tmp_path / "log.jsonl")
    assert not list(tmp_path.glob("log*.jsonl*"))


def test_what_stands_in_the_place_of_a_picture_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows())
    others = (tmp_path / "mine", tmp_path / "log_pictures" / sha256(picture(1)))
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_bytes(bytes(len(picture(1))))
    linked = tmp_path / "log_pictures" / sha256(picture(0))
    linked.symlink_to(others[0])
    write_question_log(tmp_path / "a.parquet", tmp_path / "log.jsonl")
    assert linked.read_bytes() == picture(0) and others[1].read_bytes() == picture(1)
    assert not any(others[0].read_bytes())


def test_two_runs_do_not_write_one_log(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows())
    part = tmp_path / "log.jsonl.part"
    part.write_text("of another run")
    with pytest.raises(FileExistsError, match=r"log\.jsonl\.part is there: another run"):
        write_question_log(tmp_path / "a.parquet", tmp_path / "log.jsonl")
    assert part.read_text() == "of another run"


def test_rows_of_files_of_one_name_have_ids_of_their_own(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "q.parquet", rows())
    count = write_question_log(f"{tmp_path}/*/q.parquet", tmp_path / "log.jsonl")
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == count


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows())
    with pytest.raises(
        OSError, match=r"cannot be written .*give another place: '.*/no/log\.jsonl'"
    ):
        write_question_log(tmp_path / "a.parquet", tmp_path / "no" / "log.jsonl")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
