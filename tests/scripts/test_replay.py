"""The command on flat colours: what it writes, and what it says of wrong options."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from data import held_out
from keynet.evaluation.report import read_report
from keynet.types import KeyOutput, KeySpace, Request
from scripts import replay

CONF = Path(__file__).parents[2] / "conf"


class Encoder:
    """A key a group, as the toy source knows it: by colour's mean and question."""

    space = KeySpace("toy", 1, 16, 64, "0" * 16)

    def preprocessor(self, requests: list[Request], first: int) -> Any:
        return ([str(r.group) for r in requests],) * 4

    def run(self, groups: list[str], *_: Any) -> KeyOutput:
        import torch

        rows = []
        for group in groups:
            drawn = torch.Generator().manual_seed(sum(map(ord, group)))
            rows.append(torch.randn(16, generator=drawn))
        key = torch.nn.functional.normalize(torch.stack(rows), dim=1)
        return KeyOutput(key, key, key, key.repeat(1, 4), key[:, 0])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_source: Any) -> Callable[..., Any]:
    trace = tmp_path / "trace.jsonl"
    rng = np.random.default_rng(0)
    rows = ({"time": at, "object": int(o)} for at, o in enumerate(rng.integers(40, size=120)))
    trace.write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.setattr(replay, "load_key_model", lambda path: Encoder())
    monkeypatch.setattr(replay, "instantiate", lambda node: toy_source)
    monkeypatch.setattr(held_out, "read_trained_on", lambda export: np.zeros(1, np.uint64))
    monkeypatch.setattr(sys, "argv", ["-m", "scripts.replay"])

    def composed(*overrides: str) -> DictConfig:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose(
                "replay",
                [
                    "export=none", f"trace.path={trace}", "trace.format=jsonl", "trace.sample=1",
                    "arrivals=null", "traces=1", f"out={tmp_path / 'out'}",
                    f"keep={tmp_path / 'keep'}", "policies=[lru]", *overrides,
                ],
            )  # fmt: skip

    return composed


def test_a_command_writes_records_and_a_page(
    config: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay.run(config("command=counting"))
    records = read_report(tmp_path / "out" / "report.json")
    counted = [r for r in records if r.metric != "left_out"]
    assert {r.method for r in counted} == {"strings", "ids", "text", "entries"}
    assert all(r.data == "toy" and r.subset == "counting:trace" for r in counted)
    left_out = {r.split: (r.value, r.n) for r in records if r.metric == "left_out"}
    assert left_out == {"calibration": (0, 98), "test": (0, 98)}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "semantic counting" in page and "Pictures: nobody." in page
    assert "semantic counting" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("command=strategie", "no command 'strategie'; known are strategies, policies"),
        ("strategies=[exakt]", "no strategy 'exakt'; known are aligned, exact"),
        ("policies=[lfru]", "no policy 'lfru'; known are lru"),
        ("trace.path=none.bin", "none.bin is no file; give the path of a trace"),
        ("trace.format=csv", "no trace format 'csv'; known are jsonl"),
        ("trace.sample=0", "sample is 0; expected a share"),
        ("visits=0", "visits=0: expected a whole number, 1 or more"),
        ("traces=two", "traces=two: expected a whole number"),
        ("+arrivals.path=none.csv", "none.csv is no file"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    config: Callable[..., Any], override: str, said: str
) -> None:
    first = ["command=counting"] if "command" not in override else []
    cfg = config(*first, *([] if override.startswith("+") else [override]))
    if override.startswith("+"):
        cfg.arrivals = {"path": "none.csv", "format": "azure"}
    with pytest.raises(ValueError, match=said.replace(".", r"\.")) as error:
        replay.run(cfg)
    assert "\n" not in str(error.value)


def test_a_trace_of_arrivals_alone_is_no_trace(config: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:04,1,2\n")
    with pytest.raises(ValueError, match="arrivals alone and no objects"):
        replay.run(config("command=counting", f"trace.path={path}", "trace.format=azure"))


def test_data_without_images_and_texts(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [Request(text="a", group="a", response="a")]
    source = types.SimpleNamespace(
        name="texts", attribution=(), disjoint_phrasings=False, requests=lambda split: texts
    )
    monkeypatch.setattr(replay, "instantiate", lambda node: source)
    with pytest.raises(ValueError, match="data texts has no requests with image and text"):
        replay.run(config("command=counting"))
