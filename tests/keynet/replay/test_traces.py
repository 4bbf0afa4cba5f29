from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keynet.replay.oracle_general import RECORD
from keynet.replay.trace import TraceError, Visit
from keynet.replay.traces import FORMATS, read_trace

TRACES = Path(__file__).parents[4] / "shared/data/traces"
needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the public traces are not at ../shared/data/traces"
)


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return path


def write_records(path: Path, *rows: tuple[int, int, int, int]) -> Path:
    np.array(list(rows), RECORD).tofile(path)
    return path


def fault(path: Path, format: str) -> str:
    with pytest.raises(TraceError) as error:
        list(read_trace(path, format))
    assert "\n" not in str(error.value)
    return str(error.value).replace(str(path), "PATH")


def test_our_own_format_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "t",
        {"time": 0.5, "object": "a", "size": 7, "cost": 0.25, "scope": "x"},
        "",
        {"time": 0.5, "object": 3},
    )
    assert list(read_trace(path, "jsonl")) == [
        Visit(0.5, "a", 7, 0.25, "x"), Visit(0.5, 3, 1, 1.0, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"object": 1}, "PATH, line 2: no field time, only object; add it"),
        ({"time": 2}, "PATH, line 2: no field object, only time; add it"),
        ({}, "PATH, line 2: no field time, only none; add it"),
        ({"time": "2", "object": 1}, "line 2: time is '2'; expected a number, 0 or more"),
        ({"time": True, "object": 1}, "time is True"),
        ('{"time": NaN, "object": 1}', "time is nan"),
        ('{"time": Infinity, "object": 1}', "time is inf"),
        ({"time": -1, "object": 1}, "time is -1"),
        ({"time": 2, "object": 1.5}, "object is 1.5; expected a text or a whole number"),
        ({"time": 2, "object": None}, "object is None"),
        ({"time": 2, "object": 1, "size": 0}, "size is 0; expected a whole number, 1 or more"),
        ({"time": 2, "object": 1, "size": 1.5}, "size is 1.5"),
        ({"time": 2, "object": 1, "cost": -0.1}, "cost is -0.1"),
        ({"time": 2, "object": 1, "scope": 3}, "scope is 3; expected a text"),
        ({"time": 2, "object": 1, "sice": 3}, "unknown field sice; expected time, object"),
        ({"time": 0.5, "object": 1}, "line 2: time 0.5 is before 1 of the line before it; sort"),
        ("[1]", "PATH, line 2: list; expected one JSON object"),
        ('{"time": 2', "PATH, line 2: "),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, second: Any, said: str) -> None:
    path = write_lines(tmp_path / "t", {"time": 1, "object": 1}, second)
    assert said in fault(path, "jsonl")


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_trace_is_an_error(tmp_path: Path, format: str) -> None:
    (tmp_path / "t").write_bytes(b"")
    assert "PATH is empty; expected at least one" in fault(tmp_path / "t", format)


def test_a_csv_with_a_head_alone_is_empty(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t", "TIMESTAMP,ContextTokens,GeneratedTokens")
    assert "is empty" in fault(path, "azure")


def test_unknown_formats_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no trace format 'csv'; known are jsonl, oracle_general"):
        read_trace(tmp_path, "csv")
    with pytest.raises(TraceError, match="is no file"):
        read_trace(tmp_path / "none", "jsonl")


def test_oracle_general(tmp_path: Path) -> None:
    path = write_records(tmp_path / "t", (1, 2**63, 512, 2), (1, 8, 0, -1))
    assert list(read_trace(path, "oracle_general")) == [Visit(1, 2**63, 512), Visit(1, 8, 1)]


def test_oracle_general_out_of_order_or_cut_off(tmp_path: Path) -> None:
    path = write_records(tmp_path / "t", (5, 1, 1, 0), (4, 1, 1, 0))
    assert "PATH, record 2: time 4 is before 5" in fault(path, "oracle_general")
    path.write_bytes(path.read_bytes()[:-1])
    assert "PATH has 47 bytes; expected records of 24" in fault(path, "oracle_general")


def mooncake(**change: Any) -> dict[str, Any]:
    row = {"timestamp": 1500, "input_length": 600, "output_length": 20, "hash_ids": [0, 1, 2]}
    return {**row, **change}


def test_mooncake_objects_are_prefixes(tmp_path: Path) -> None:
    rows = [mooncake(), mooncake(hash_ids=[0, 1, 9]), mooncake(hash_ids=[0, 3])]
    first, same, other = read_trace(write_lines(tmp_path / "t", *rows), "mooncake")
    assert first.object == same.object != other.object
    assert first[0] == 1.5 and first[2:] == (80, 620.0, "")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({k: v for k, v in mooncake().items() if k != "hash_ids"}, "no field hash_ids"),
        (mooncake(hash_ids="a"), "hash_ids is a; expected whole numbers"),
        (mooncake(hash_ids=[1.5]), "hash_ids is [1.5]"),
        (mooncake(output_length=0.5), "output_length is 0.5; expected a whole number"),
        (mooncake(timestamp=1), "time 0.001 is before 1.5"),
    ],
)
def test_mooncake_faults(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    assert said in fault(write_lines(tmp_path / "t", mooncake(), row), "mooncake")


HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = "2023-11-16 18:17:03.9799600,4808,10"


def test_azure_has_arrivals_alone(tmp_path: Path) -> None:
    later = "2023-11-16 18:17:04.0319600,3180,0"
    first, second = read_trace(write_lines(tmp_path / "t", HEAD, ROW, later), "azure")
    assert first[1:] == (None, 40, 4818.0, "") and second.size == 1
    assert second.time - first.time == pytest.approx(0.052, abs=1e-5)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a,b", ROW], "line 1: columns a, b; expected"),
        ([HEAD, ROW, "2023-11-16 18:17:04,1"], "line 3: 2 values"),
        ([HEAD, ROW, "yesterday,1,2"], "line 3: Invalid isoformat"),
        ([HEAD, ROW, "2023-11-16 18:17:04,x,2"], "line 3: invalid literal"),
        ([HEAD, ROW, "2023-11-16 18:17:04,-1,2"], "line 3: -1, 2 tokens"),
        ([HEAD, ROW, "2023-11-16 18:17:03,1,2"], "line 3: time"),
    ],
)
def test_azure_faults(tmp_path: Path, lines: Sequence[str], said: str) -> None:
    assert said in fault(write_lines(tmp_path / "t", *lines), "azure")


def test_traces_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with path.open("w") as file:
        for at in range(60_000):
            file.write(f'{{"time": {at}, "object": {at}}}\n')
        file.write("broken\n")
    tracemalloc.start()
    count = 0
    with pytest.raises(TraceError, match="line 60001"):
        for _ in read_trace(path, "jsonl"):
            count += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 60_000 and peak < 2**20


@pytest.mark.slow
def test_ten_million_records_take_little_memory(tmp_path: Path) -> None:
    path, many = tmp_path / "t", 10_000_000
    with path.open("wb") as file:
        for first in range(0, many, 1_000_000):
            rows = np.zeros(1_000_000, RECORD)
            rows["object"] = np.arange(first, first + 1_000_000)
            rows.tofile(file)
    reading = read_trace(path, "oracle_general")
    tracemalloc.start()
    for _ in range(100_000):
        next(reading)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 * 2**20
    assert sum(1 for _ in reading) == many - 100_000


@needs_traces
@pytest.mark.parametrize(
    ("name", "format", "count", "objects"),
    [
        ("cloudPhysicsIO.oracleGeneral.bin", "oracle_general", 113_872, 48_974),
        ("mooncake_synthetic_trace.jsonl", "mooncake", 3_993, None),
        ("AzureLLMInferenceTrace_code.csv", "azure", 8_819, 1),
    ],
)
def test_the_public_traces(name: str, format: str, count: int, objects: int | None) -> None:
    visits = list(read_trace(TRACES / name, format))
    assert len(visits) == count  # as the data's README says
    assert objects in (None, len({visit.object for visit in visits}))
