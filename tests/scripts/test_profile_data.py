from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from data.chat_log import ChatLog
from data.log_writer import write_log
from data.picture_sources import PictureSources
from keynet.evaluation.report import read_report
from scripts import profile_data as script

CONF = Path(__file__).parents[2] / "conf"


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, **changes: Any) -> dict:
    monkeypatch.setattr(script, "instantiate", lambda _: source)
    cfg = {"data": {"source": {}}, "pairs": None, "doubt": None, "seed": 0}
    cfg["out"] = str(tmp_path / "out")
    script.run(OmegaConf.create(cfg | changes))
    records = read_report(tmp_path / "out" / "report.json")
    return {(r.split, r.subset, r.method, r.metric): r for r in records}


def test_a_chat_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_source: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "log.jsonl"
    broken = write_log(
        toy_source.requests("train"), path, lines=100, broken=0.2, repeats=0.1, seed=0
    )
    path.write_bytes(path.read_bytes().replace(b'"temperature": 0', b'"latency": 0'))
    source = ChatLog(path=path, pictures=PictureSources(kept=tmp_path / "kept"))
    written = {name: str(tmp_path / f"{name}.jsonl") for name in ("pairs", "doubt")}
    found = run(tmp_path, monkeypatch, source, **written)
    for reason, numbers in broken.items():
        record = found["all", f"broken:{reason}", "data", "broken_lines"]
        assert (record.value, record.note) == (
            len(numbers), f"lines {', '.join(map(str, numbers))}",
        )  # fmt: skip
    assert found["all", "all", "data", "lines"].value == 100
    assert found["all", "all", "data", "broken_lines"].value == 0.2
    sizes = [found[s, "all", "data", "requests"].value for s in ("train", "calibration", "test")]
    assert sum(filter(None, sizes)) == found["all", "all", "data", "requests"].value == 80
    exact, oracle = (found["all", "all", m, "saved_requests"].value for m in ("exact", "oracle"))
    assert exact is not None and oracle is not None and 0.1 < exact < oracle < 1
    doubt = found["all", "all", "data", "requests_in_doubt"]
    assert doubt.value == source.log.doubt.requests / 80 > 0
    said = capsys.readouterr().out
    assert "20 of 100 lines are broken; report.json names them all." in said
    assert "Fields that are not read, in how many lines: latency (" in said
    for word in ("broken JSON", "exact saved_requests", "requests in doubt", "calibration"):
        assert word in said
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert pairs and all({"anchor", "positive", "negative"} <= pair.keys() for pair in pairs)
    lines = (tmp_path / "doubt.jsonl").read_text().splitlines()
    assert len(lines) == source.log.doubt.pairs > 0
    with pytest.raises(ValueError, match="is there already"):  # labels are not overwritten
        run(tmp_path, monkeypatch, source, doubt=str(tmp_path / "doubt.jsonl"))
    with pytest.raises(ValueError, match=r"pairs and doubt are both .*new\.jsonl; give each its"):
        run(tmp_path, monkeypatch, source, **dict.fromkeys(("pairs", "doubt"), "new.jsonl"))
    # Labelled, they are decided; what is not yet labelled stays in doubt.
    first = json.loads(lines[0]) | {"same": True}
    (tmp_path / "doubt.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]))
    labelled = ChatLog(
        path=path, pictures=PictureSources(kept=tmp_path / "kept"), pairs=tmp_path / "doubt.jsonl"
    ).log.doubt
    assert (labelled.judged, labelled.joined) == (1, 1)
    assert labelled.pairs < len(lines)


def test_any_data_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_source: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found = run(tmp_path, monkeypatch, toy_source)
    assert found["train", "all", "data", "requests"].value == 98
    assert found["all", "all", "data", "requests"].value == 3 * 98
    assert found["train", "all", "data", "conversations"].value is None
    assert ("all", "all", "data", "lines") not in found
    assert "broken" not in capsys.readouterr().out


@pytest.mark.parametrize("data", ["chat_log", "emoji", "easy_vqa", "flickr8k"])
def test_its_configuration_composes(data: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("profile_data", overrides=[f"data={data}", "out=there"])
    assert OmegaConf.to_container(cfg.data.source, resolve=True)


def test_of_a_log_that_is_refused_all_broken_lines_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, report = tmp_path / "log.jsonl", tmp_path / "out" / "report.json"
    path.write_bytes(b"{\n" * 30 + b"{}\n")
    source = ChatLog(path=path, pictures=PictureSources(kept=tmp_path / "kept"))
    with pytest.raises(ValueError, match=rf"more than half; .*; all of them: {report}$"):
        run(tmp_path, monkeypatch, source)
    found = {r.subset: r for r in read_report(report)}
    numbers = ", ".join(map(str, range(1, 31)))
    assert found["broken:broken JSON"].note == f"lines {numbers}"
    assert found["broken:no messages"].note == "lines 31"
    assert "31 of 31 lines are broken; report.json names them all." in capsys.readouterr().out
