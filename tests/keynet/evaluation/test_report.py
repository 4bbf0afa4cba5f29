"""report.json: the schema, the round trip, and a file that is whole or absent."""

from __future__ import annotations

import json
import math
import resource
from pathlib import Path

import pytest

from keynet.evaluation.records import Record
from keynet.evaluation.report import read_report, write_report, write_whole


def record(value: float | None = 0.97, note: str = "", bits: int | None = 256) -> Record:
    return Record(
        data="easy_vqa",
        split="test",
        subset="all",
        method="keynet_tiny",
        bits=bits,
        metric="hit_rate_at_0.01",
        value=value,
        low=0.96,
        high=0.98,
        n=9673,
        unit="share",
        note=note,
    )


def test_records_survive_the_round_trip(tmp_path: Path) -> None:
    records = [record(), record(None, "too few queries"), record(bits=None)]
    write_report(tmp_path / "run" / "report.json", records, "python train.py")
    assert read_report(tmp_path / "run" / "report.json") == records


def test_schema_is_the_documented_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(path, [record()], "python train.py experiment=demo")
    report = json.loads(path.read_text())
    assert list(report) == ["schema", "command", "created", "versions", "machine", "records"]
    assert report["schema"] == 1
    assert report["command"] == "python train.py experiment=demo"
    assert report["created"].endswith("+00:00")
    assert {"python", "torch", "numpy", "keynet-cache"} <= set(report["versions"])
    assert set(report["machine"]) == {"cpu", "cores", "memory_gib", "gpu"}
    assert report["records"] == [
        {
            "data": "easy_vqa",
            "split": "test",
            "subset": "all",
            "method": "keynet_tiny",
            "bits": 256,
            "metric": "hit_rate_at_0.01",
            "value": 0.97,
            "low": 0.96,
            "high": 0.98,
            "n": 9673,
            "unit": "share",
        }
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_null(tmp_path: Path, value: float) -> None:
    path = tmp_path / "report.json"
    write_report(path, [record(value)], "x")
    assert json.loads(path.read_text())["records"][0]["value"] is None
    assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()


@pytest.mark.parametrize("schema", [0, 2, "1", None, True])
def test_another_schema_is_refused(tmp_path: Path, schema: object) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"schema": schema, "records": []}))
    with pytest.raises(ValueError, match="this version reads 1"):
        read_report(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "x": NaN}', "\x00"]
)
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="run the evaluation again") as error:
        read_report(path)
    assert "\n" not in str(error.value)


def test_a_record_with_a_missing_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"schema": 1, "records": [{"data": "emoji"}]}))
    with pytest.raises(ValueError, match=r"record 0 .* unit"):
        read_report(path)


def test_a_full_disk_leaves_the_old_report_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(path, [record()], "old")
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on file size stops a write half-way, as a full disk does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="cannot write the report"):
            write_whole(path, b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]


def test_an_unwritable_place_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="choose a writable folder"):
        write_report(tmp_path / "file" / "report.json", [record()], "x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
