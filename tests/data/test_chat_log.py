from __future__ import annotations

import base64
import gzip
import io
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from data import chat_log
from data.chat_log import ChatLog, RefusedLogError
from data.datamodule import RequestBatches
from data.picture_sources import PictureSources
from data.tokenizer import train_tokenizer
from keynet.preprocess import Preprocessor
from keynet.types import Request

COLOURS = ("red", "green", "blue", "orange", "black", "white", "pink", "gray", "brown", "gold")


def data_url(colour: str) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def line(text: str | None, response: str, colour: str | None = None, **more: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [] if text is None else [{"type": "text", "text": text}]
    if colour is not None:
        parts.append({"type": "image_url", "image_url": {"url": data_url(colour)}})
    asked = {"role": "user", "content": parts}
    return {"model": "vlm", "messages": [asked], "response": response} | more


def write(path: Path, *lines: dict[str, Any] | bytes) -> Path:
    written = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    path.write_bytes(b"\n".join(written) + b"\n")
    return path


def source(path: Path, **settings: Any) -> ChatLog:
    pictures = PictureSources(kept=path.parent / "kept")
    return ChatLog(path=path, pictures=pictures, **settings)


WHOLE = [line("what colour is it?", colour, colour) for colour in COLOURS]


def test_requests_as_training_and_evaluation_want_them(tmp_path: Path) -> None:
    log = write(
        tmp_path / "log.jsonl",
        line("What colour is it?", "red", "red", id="x", conversation="c")
        | {"usage": {"total_tokens": 9}},
        *WHOLE,
        line("hello", "hi"),
        line(None, "a colour", "green"),
    )
    found = source(log).log
    first = found.requests[0]
    assert (first.text, first.response) == ("What colour is it?", "red")
    assert first.group == found.requests[1].group != found.requests[2].group
    assert first.intent == found.requests[2].intent
    assert first.entity == first.tags["picture"] == found.requests[1].entity
    assert {k: v for k, v in first.tags.items() if k != "picture"} == {
        "id": "x", "line": "1", "conversation": "c", "tokens": "9",
        "phrasing": "what colour is it",
    }  # fmt: skip
    assert first.image == found.requests[1].image  # kept once
    assert [r.modalities for r in found.requests[-2:]] == ["text", "image"]
    assert (found.lines, len(found.broken), len(found.requests)) == (13, 0, 13)


def test_training_reads_it(tmp_path: Path) -> None:
    requests = source(write(tmp_path / "log.jsonl", *WHOLE)).requests("train")
    tokenizer = train_tokenizer([str(r.text) for r in requests], vocab_size=300)
    batch = RequestBatches(requests, Preprocessor(16, tokenizer, 16))[range(len(requests))]
    assert batch.image_mask.all() and batch.token_mask.any()
    assert len(batch.group.unique()) == len(requests)


def test_splits_share_no_conversation_and_no_picture(tmp_path: Path) -> None:
    lines = [
        line(f"question {n}", "x", COLOURS[n % 9] if n % 3 else None, conversation=f"c{n // 5}")
        for n in range(40)
    ]
    shown = line(None, "", "red")["messages"][0]
    later = line("and now?", "y")
    later["messages"] = [shown, *later["messages"]]
    lines += [line("what?", "z", "red"), later, line("hello", "hi"), line("Hello!", "hi"), *WHOLE]
    for seed in range(4):
        found = source(write(tmp_path / "log.jsonl", *lines), seed=seed)
        numbers = [r.tags["line"] for r in found.log.requests]
        split = dict(zip(numbers, found.log.split, strict=True))
        assert split["41"] == split["42"]  # a picture of an earlier turn
        assert split["43"] == split["44"]  # a repeated text
        where: dict[str, set[str]] = {}
        for name in ("train", "calibration", "test"):
            for request in found.requests(name):
                for tag in ("picture", "conversation"):
                    if tag in request.tags:
                        where.setdefault(request.tags[tag], set()).add(name)
        assert all(len(names) == 1 for names in where.values())
    assert sum(len(found.requests(name)) for name in ("train", "calibration", "test")) == len(lines)


def test_a_development_fold_is_cut_from_what_is_trained_on(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", *(line(f"question {n}", f"{n}") for n in range(60)))
    splits = ("train", "calibration", "test")
    whole, dev = source(log), source(log, fold="dev")
    trained = {request.tags["line"] for request in whole.requests("train")}
    inner = [{request.tags["line"] for request in dev.requests(name)} for name in splits]
    assert set.union(*inner) == trained and sum(map(len, inner)) == len(trained)
    assert all(inner)
    assert (whole.name, dev.name) == ("chat_log", "chat_log_dev")
    with pytest.raises(ValueError, match="fold='best': expected test or dev"):
        source(log, fold="best")


def test_repeats_are_kept(tmp_path: Path) -> None:
    found = source(write(tmp_path / "log.jsonl", *WHOLE, *WHOLE, WHOLE[0])).log
    assert len(found.requests) == 21
    assert Counter(Counter(r.image for r in found.requests).values()) == {2: 9, 3: 1}


def test_every_broken_line_is_counted_with_its_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = write(
        tmp_path / "log.jsonl",
        b"\xef\xbb\xbf" + json.dumps(WHOLE[0]).encode(),  # a byte order mark is no error
        b"{", *WHOLE[1:], b"",
        json.dumps(line("größer", "x"), ensure_ascii=False).encode("latin-1"),
        b"{", line("x", "y", seen=1, wanted=2), line("x", "y", seen=1),
    )  # fmt: skip
    found = source(log).log
    assert found.broken.by_reason() == {
        "broken JSON": [2, 14], "empty line": [12], "not UTF-8": [13],
    }  # fmt: skip
    assert (found.lines, len(found.requests)) == (16, 12)
    assert found.unread == {"seen": 2, "wanted": 1}
    assert "4 of 16 lines are broken: 2 broken JSON" in caplog.text


def test_more_than_half_broken_or_nothing_is_an_error(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", *WHOLE[:5], *[b"{"] * 6)
    message = r"6 of 11 lines are broken: 6 broken JSON.* \(lines 6, 7, .*more than half"
    with pytest.raises(ValueError, match=message):
        source(log).requests("train")
    log.write_bytes(b"")
    with pytest.raises(ValueError, match=r"log.jsonl is empty; expected one JSON object a line"):
        source(log).requests("train")
    with pytest.raises(FileNotFoundError, match="the chat log cannot be read"):
        source(tmp_path / "none.jsonl").requests("train")
    with pytest.raises(ValueError, match=r"log.jsonl: 2 requests are 2 sets .* give more"):
        source(write(log, *WHOLE[:2])).requests("train")


def test_half_broken_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    assert len(source(write(tmp_path / "log.jsonl", *WHOLE, *[b"{"] * 10)).log.requests) == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"calibration": 0}, "expected shares above 0"),
        ({"calibration": 0.5, "test": 0.5}, "leave some for training"),
        ({"shared": ["model"]}, r"data.source.shared=\['model'\]: expected a list of some of"),
        ({"shared": "user"}, "data.source.shared=user: expected a list"),
        ({"judge_from": "x"}, "data.source.judge_from=.x.: expected a number"),
        ({"judge_from": float("nan")}, "data.source.judge_from=nan: expected a number"),
    ],
)
def test_settings_out_of_range(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source(tmp_path / "log.jsonl", **settings)


def test_the_tenant_is_in_the_scope_unless_it_is_shared(tmp_path: Path) -> None:
    lines = [one | {"tenant": "acme", "user": f"u{n}"} for n, one in enumerate(WHOLE)]
    log = write(tmp_path / "log.jsonl", *lines)
    assert {r.scope["tenant"] for r in source(log).log.requests} == {"acme"}
    scopes = [r.scope for r in source(log, shared=["tenant", "user"]).log.requests]
    assert all(scope is scopes[0] for scope in scopes)  # kept once
    assert "tenant" not in scopes[0]


def test_labels_pairs_and_a_judge(tmp_path: Path) -> None:
    lines = [
        *(one | {"id": f"{n}"} for n, one in enumerate(WHOLE)),
        line("which colour?", "red", "red", id="again"),
        line("hue?", "green", "green", id="hue"),
        line("name it", "colour", "blue", id="a", group="mine"),
        line("say it", "hue", "pink", id="b", group="mine"),
    ]
    log = write(tmp_path / "log.jsonl", *lines)
    pairs = tmp_path / "pairs.jsonl"
    decided = [{"a": "0", "b": "again", "same": True}, {"a": 1, "b": "hue", "same": False}]
    write(pairs, *decided)
    asked = []

    def judge(one: Request, other: Request) -> float:
        asked.append((one.tags["id"], other.tags["id"]))
        return 1.0

    found = source(log, pairs=pairs, judge=judge).log
    of = {r.tags["id"]: r.group for r in found.requests}
    assert of["0"] == of["again"] and of["1"] != of["hue"] and of["a"] == of["b"]
    assert asked == []  # a user has decided both
    without = source(log, judge=judge).log
    assert sorted(asked) == [("0", "again"), ("1", "hue")]
    assert len({r.group for r in without.requests}) == 11


def test_a_calibration_split_that_can_promise_nothing_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line("is it a colour?", "yes", colour) for colour in COLOURS]
    log = write(tmp_path / "log.jsonl", *lines)
    assert len(source(log, calibration=0.5).requests("calibration")) == 5
    message = (
        "of the calibration split (requests: 5) a perfect key serves 4 different questions; a "
        "budget of 1 % needs 299, so its figures will be n/a"
    )
    assert message in caplog.text
    caplog.clear()
    monkeypatch.setattr(chat_log, "BUDGET", 0.6)  # 4 served rightly suffice
    source(log, calibration=0.5).requests("calibration")
    assert not caplog.records
    monkeypatch.setattr(chat_log, "BUDGET", 0.5)  # 5
    source(log, calibration=0.5).requests("calibration")
    assert "a budget of 50 % needs 5" in caplog.text


def test_a_packed_log_is_read(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", *WHOLE)
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert source(packed).log.requests == source(log).log.requests
    packed.write_bytes(gzip.compress(b"[\n{},\n{}\n]\n"))
    with pytest.raises(RefusedLogError, match="it is one array") as error:
        source(packed).requests("train")
    assert error.value.lines == 4
    assert sum(map(len, error.value.broken.by_reason().values())) == 4
