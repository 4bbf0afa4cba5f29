"""scripts.evaluate on a chat log that has grown since the training."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from data.chat_log import ChatLog
from data.held_out import content_numbers
from data.picture_sources import PictureSources
from data.tokenizer import train_tokenizer
from keynet.evaluation.records import Record
from keynet.evaluation.report import read_report
from keynet.export.exporter import export_key_model
from keynet.models.key_model import KeyModel
from keynet.preprocess import Preprocessor
from keynet.types import Request
from scripts import evaluate as script
from scripts import write_chat_log

CONF = Path(__file__).parents[2] / "conf"


def export(model: KeyModel, folder: Path, trained: list[Request] | None) -> None:
    """Export a model that says that it was trained on some requests."""
    tokenizer = train_tokenizer({"what colour is it", "is it red"}, vocab_size=300)
    golden = [Request(text="is it red"), Request(text="what colour")]
    numbers = None if trained is None else content_numbers(trained)
    export_key_model(
        model, Preprocessor(16, tokenizer, 32), folder, "tiny", 1, golden, trained_on=numbers
    )


@pytest.fixture
def logs(
    tmp_path: Path, toy_source: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[ChatLog, ChatLog]:
    """A log, and what it had grown to."""

    class Sizes(type(toy_source)):  # type: ignore[misc]
        """Each size of a colour is a picture of its own."""

        def requests(self, split: str) -> list[Request]:
            return [
                replace(r, tags={**r.tags, "picture": str(zlib.crc32(r.image or b""))})
                for r in super().requests(split)
            ]

    monkeypatch.setattr(write_chat_log, "instantiate", lambda _: Sizes())
    made = {
        "data": {"source": {}}, "path": str(tmp_path / "grown.jsonl"), "lines": 240, "broken": 0.0,
        "repeats": 0.3, "seed": 0,
    }  # fmt: skip
    write_chat_log.run(OmegaConf.create(made))
    lines = (tmp_path / "grown.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_bytes(b"".join(lines[:100]))
    pictures = PictureSources(kept=tmp_path / "kept")
    return (
        ChatLog(path=tmp_path / "log.jsonl", pictures=pictures),
        ChatLog(path=tmp_path / "grown.jsonl", pictures=pictures),
    )


@pytest.fixture
def judged(
    tmp_path: Path, logs: tuple[ChatLog, ChatLog], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[Record]]:
    """What judges the export on the grown log and returns the report's records."""

    def run() -> list[Record]:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose(
                "evaluate",
                [
                    f"export={tmp_path / 'export'}", "data=chat_log", f"out={tmp_path / 'out'}",
                    "evaluation.baseline_image_size=null", "evaluation.settings.visits=40",
                    "evaluation.settings.orders=1", "evaluation.consistency_requests=4",
                    "evaluation.latency_requests=2",
                ],
            )  # fmt: skip
        real = script.instantiate

        def instantiate(node: Any, **given: Any) -> Any:
            return real(node, **given) if "settings" in node else logs[1]

        with monkeypatch.context() as patched:
            patched.setattr(script, "instantiate", instantiate)
            script.run(cfg)
        return read_report(tmp_path / "out" / "report.json")

    return run


def pictures_and_texts(requests: list[Request]) -> list[bytes | str]:
    return [str(r.text) if r.image is None else Path(str(r.image)).read_bytes() for r in requests]


def test_what_was_trained_on_is_left_out_and_the_report_says_so(
    tiny_key_model: Callable[[], KeyModel],
    logs: tuple[ChatLog, ChatLog],
    judged: Callable[[], list[Record]],
    tmp_path: Path,
) -> None:
    before, grown = logs
    export(tiny_key_model(), tmp_path / "export", before.requests("train"))
    records = judged()
    known = set(pictures_and_texts(before.requests("train")))
    page = (tmp_path / "out" / "report.html").read_text()
    for split in ("calibration", "test"):
        every = pictures_and_texts(grown.requests(split))  # type: ignore[arg-type]
        count = sum(content in known for content in every)
        (told,) = [r for r in records if (r.metric, r.split) == ("left_out", split)]
        assert (told.value, told.n) == (count, len(every))
        assert 0 < count < len(every)
        assert f"{split}: {count} of {len(every)} requests left out, since the model" in page
    (answered,) = [r for r in records if r.metric == "answered_at_0.01" and r.bits is None]
    assert answered.n == len(every) - count


def test_of_an_older_export_the_report_says_that_it_does_not_tell(
    tiny_key_model: Callable[[], KeyModel],
    logs: tuple[ChatLog, ChatLog],
    judged: Callable[[], list[Record]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    export(tiny_key_model(), tmp_path / "export", None)
    told = [r for r in judged() if r.metric == "left_out"]
    assert [(r.value, r.n) for r in told] == [
        (None, len(logs[1].requests(split))) for split in ("calibration", "test")
    ]
    said = f"{tmp_path / 'export'} does not tell what it was trained on"
    assert caplog.text.count(said) == 1
    assert said in (tmp_path / "out" / "report.html").read_text()


def test_with_nothing_left_it_ends_in_one_line(
    tiny_key_model: Callable[[], KeyModel],
    logs: tuple[ChatLog, ChatLog],
    judged: Callable[[], list[Record]],
    tmp_path: Path,
) -> None:
    export(tiny_key_model(), tmp_path / "export", logs[1].log.requests)
    with pytest.raises(ValueError, match="was trained on the pictures or texts of") as error:
        judged()
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "report.json").exists()
