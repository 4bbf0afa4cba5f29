from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data.chat_log import ChatLog
from data.log_writer import BROKEN, LOW_DETAIL_TOKENS, write_log
from data.picture_sources import PictureSources
from keynet.types import Request


def test_a_written_log_is_read_and_each_broken_line_has_its_reason(
    tmp_path: Path, toy_source: object
) -> None:
    requests = toy_source.requests("train")  # type: ignore[attr-defined]
    path = tmp_path / "new" / "log.jsonl"
    broken = write_log(requests, path, lines=100, broken=0.4, repeats=0.1, seed=0)
    assert set(broken) == set(BROKEN)
    assert sum(map(len, broken.values())) == 40
    found = ChatLog(path=path, pictures=PictureSources(kept=tmp_path / "kept")).log
    assert found.broken.by_reason() == broken
    assert (found.lines, len(found.requests)) == (100, 60)
    known = {(r.text, r.response) for r in requests}
    assert {(r.text, r.response) for r in found.requests} <= known
    repeats = Counter((r.image, r.text) for r in found.requests)
    assert sum(repeats.values()) - len(repeats) >= 10
    assert any(path.with_name("log_pictures").glob("*.png"))
    assert not found.unread


def test_the_seed_decides_and_a_log_is_replaced(tmp_path: Path, toy_source: object) -> None:
    requests = toy_source.requests("train")  # type: ignore[attr-defined]
    written = []
    for seed in (1, 1, 2):
        write_log(requests, tmp_path / "log.jsonl", lines=30, broken=0, repeats=0, seed=seed)
        written.append((tmp_path / "log.jsonl").read_bytes())
    assert written[0] == written[1] != written[2]
    lines = [json.loads(line) for line in written[0].splitlines()]
    assert [line["id"] for line in lines] == [f"request-{n}" for n in range(1, 31)]
    assert {"model", "messages", "response", "usage", "temperature"} <= lines[0].keys()
    for line in lines:
        parts = line["messages"][0]["content"]
        shown = sum(part["type"] == "image_url" for part in parts)
        assert line["usage"]["prompt_tokens"] // LOW_DETAIL_TOKENS == shown


def test_repeats_are_verbatim_and_pixels_become_a_file(tmp_path: Path) -> None:
    requests = [Request(text=f"question {n}", response="x") for n in range(20)]
    requests[0] = Request(image=np.zeros((4, 4, 3), np.uint8), response="black")
    path = tmp_path / "log.jsonl"
    write_log(requests, path, lines=40, broken=0, repeats=0.5, seed=0)
    asked = [json.dumps(json.loads(x)["messages"]) for x in path.read_text().splitlines()]
    assert len(set(asked)) == 20


@pytest.mark.parametrize(
    ("lines", "broken", "message"),
    [(101, 0, "lines=101: the data has 100 requests; ask for fewer"), (1, 0.9, "leave none")],
)
def test_too_many_lines_are_refused(
    tmp_path: Path, lines: int, broken: float, message: str
) -> None:
    requests = [Request(text=f"question {n}", response="x") for n in range(100)]
    with pytest.raises(ValueError, match=message):
        write_log(requests, tmp_path / "x.jsonl", lines=lines, broken=broken, repeats=0.0, seed=0)
