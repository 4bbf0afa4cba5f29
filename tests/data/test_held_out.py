"""What is one picture or text, and what is left out of a chat log that has grown."""

from __future__ import annotations

import hashlib
import logging
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import held_out
from data.chat_log import ChatLog
from data.held_out import HeldOut, content_numbers
from data.log_writer import write_log
from data.picture_sources import PictureSources
from data.requests import CaptionedSource
from keynet.types import Request


def first_bytes(content: bytes) -> int:
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "little")


def test_a_picture_is_its_content_wherever_it_is_and_whatever_is_asked(tmp_path: Path) -> None:
    content = b"\x89PNG a picture"
    (tmp_path / "a.png").write_bytes(content)
    (tmp_path / "b.png").write_bytes(content)
    images = [content, bytes(bytearray(content)), tmp_path / "a.png", str(tmp_path / "b.png")]
    requests = [Request(image=image, text=f"{n}?") for n, image in enumerate(images)]
    numbers = content_numbers([*requests, Request(image=content), Request(image=content + b".")])
    assert numbers.dtype == np.uint64
    assert numbers[:5].tolist() == [first_bytes(content)] * 5
    assert numbers[5] == first_bytes(content + b".")


def test_an_array_is_its_pixels() -> None:
    pixels = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
    turned = np.asfortranarray(pixels)
    others = [pixels[::-1], pixels.reshape(2, 8, 3), pixels.astype(np.int16)]
    numbers = content_numbers([Request(image=i) for i in (pixels, pixels.copy(), turned, *others)])
    assert len(set(numbers[:3].tolist())) == 1
    assert len(set(numbers.tolist())) == 4


def test_a_text_alone_is_what_splits_compare() -> None:
    texts = ["What is a cat?", "what  is a cat", "What is a hat?"]
    same, again, other = content_numbers([Request(text=text) for text in texts]).tolist()
    assert same == again == first_bytes(b"what is a cat")
    assert other == first_bytes(b"what is a hat")


def chat_log(path: Path, **options: Any) -> ChatLog:
    return ChatLog(path=path, pictures=PictureSources(kept=path.parent / "kept"), **options)


@pytest.fixture
def logs(tmp_path: Path, toy_source: Any) -> tuple[ChatLog, ChatLog]:
    """A log, and the same log when it had grown."""
    grown = tmp_path / "grown.jsonl"
    requests = [  # each size of a colour is a picture of its own
        replace(r, tags={**r.tags, "picture": str(zlib.crc32(r.image or b""))})
        for r in toy_source.requests("test")
    ]
    write_log(requests, grown, lines=130, broken=0.0, repeats=0.3, seed=0)
    lines = grown.read_bytes().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_bytes(b"".join(lines[:70]))
    return chat_log(tmp_path / "log.jsonl"), chat_log(grown)


def contents(requests: list[Request]) -> list[str]:
    """What was asked about, told in another way than ``content_numbers`` does."""
    pictures = (None if r.image is None else Path(str(r.image)).read_bytes() for r in requests)
    return [
        str(r.text).lower().strip("?. ") if picture is None else picture.hex()
        for r, picture in zip(requests, pictures, strict=True)
    ]


def exports(monkeypatch: pytest.MonkeyPatch, **trained: list[Request] | None) -> None:
    numbers = {
        name: None if requests is None else np.unique(content_numbers(requests))
        for name, requests in trained.items()
    }
    monkeypatch.setattr(held_out, "read_trained_on", lambda export: numbers[export])


@pytest.mark.parametrize("split", ["calibration", "test"])
def test_of_a_log_that_has_grown_what_was_trained_on_is_left_out(
    logs: tuple[ChatLog, ChatLog],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    split: Any,
) -> None:
    before, grown = logs
    exports(monkeypatch, export=before.requests("train"))
    source = HeldOut(grown, "export")
    every = grown.requests(split)
    trained = set(contents(before.requests("train")))
    wanted = [
        r for r, content in zip(every, contents(every), strict=True) if content not in trained
    ]
    assert 0 < len(wanted) < len(every)
    with caplog.at_level(logging.WARNING):
        assert source.requests(split) == wanted
        assert source.requests(split) == wanted
    count, total, told = source.left_out["requests", split]
    said = f"{split}: {len(every) - len(wanted):,} of {len(every):,} requests left out, since"
    assert [m for m in caplog.messages if "left out" in m] == [told]
    assert told.startswith(said)
    assert (count, total) == (len(every) - len(wanted), len(every))
    assert source.requests("train") == grown.requests("train")


def test_nothing_is_left_out_where_the_log_is_the_same(
    logs: tuple[ChatLog, ChatLog],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    exports(monkeypatch, export=logs[1].requests("train"))
    source = HeldOut(logs[1], "export")
    assert source.requests("test") == logs[1].requests("test")
    assert source.left_out == {("requests", "test"): (0, len(logs[1].requests("test")), "")}
    assert not [record for record in caplog.records if record.name == held_out.__name__]


def test_with_nothing_left_it_says_what_to_give(
    logs: tuple[ChatLog, ChatLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = logs[1].requests("test")
    exports(monkeypatch, all=every, most=[r for r in every if r.image != every[0].image])
    said = rf"chat_log: the model was trained on .* {len(every)} of the {len(every)} requests"
    with pytest.raises(ValueError, match=rf"{said} of the test split.*; give the data"):
        HeldOut(logs[1], "all").requests("test")
    own = [r for r in every if r.image == every[0].image]
    kept = [replace(r, group=str(n)) for n, r in enumerate(own)]
    monkeypatch.setattr(logs[1], "requests", lambda split: [*every[len(own) :], *kept])
    with pytest.raises(ValueError, match="no two of those that are left are equivalent"):
        HeldOut(logs[1], "most").requests("test")


def test_what_any_of_several_models_was_trained_on_is_left_out(
    logs: tuple[ChatLog, ChatLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = logs[1].requests("test")
    one, other = every[0], next(r for r in every if r.image != every[0].image)
    exports(monkeypatch, one=[one], other=[other])
    left = HeldOut(logs[1], "one", "other").requests("test")
    gone = set(contents([one, other]))
    assert left == [r for r, c in zip(every, contents(every), strict=True) if c not in gone]


def test_an_export_that_does_not_tell_is_said_once(
    logs: tuple[ChatLog, ChatLog],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    exports(monkeypatch, old=None)
    source = HeldOut(logs[1], "old")
    for split in ("calibration", "test"):
        assert source.requests(split) == logs[1].requests(split)
    told = [m for m in caplog.messages if "does not tell what it was trained on" in m]
    assert len(told) == 1 and told[0].startswith("old does not tell")
    assert source.left_out["requests", "test"] == (None, len(logs[1].requests("test")), told[0])


def test_captions_of_pictures_that_were_trained_on_are_left_out(
    toy_source: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = [r for r in toy_source.requests("test") if r.image is not None]
    exports(monkeypatch, export=found[:1])

    class Captioned(type(toy_source)):  # type: ignore[misc]
        def captions(self, split: str) -> list[Request]:
            return found

    source = HeldOut(Captioned(), "export")
    assert isinstance(source, CaptionedSource)
    assert source.captions("test") == [r for r in found if r.image != found[0].image]
    assert source.captions("train") == found
    assert f"test: 5 of {len(found)} captions left out" in caplog.text
    assert source.left_out["captions", "test"][:2] == (5, len(found))
    assert HeldOut(toy_source, "export").captions("test") == []
