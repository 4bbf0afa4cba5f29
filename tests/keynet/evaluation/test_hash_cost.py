"""The cost of hashing and search: what is recorded of runs, and the command that measures them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

from keynet.evaluation import hash_cost
from keynet.evaluation.hash_cost import cost_table, key_records, rounds, search_records
from keynet.evaluation.report import read_report
from scripts import bench_hash


def test_ratios_are_to_the_fastest_library_and_to_a_plain_read() -> None:
    seconds = {
        hash_cost.CALL: [3e-3, 2e-3, 4e-3],
        "faiss": [2e-3],
        "NumPy": [9e-3],
        "plain read": [1e-3],
    }
    records = search_records(1000, seconds, k=10)
    found = {(r.method, r.metric): r.value for r in records}
    assert found[hash_cost.CALL, "latency_ms_p50"] == pytest.approx(3)
    assert found[hash_cost.CALL, "ratio:fastest"] == pytest.approx(1.5)
    assert found["NumPy", "ratio:fastest"] == pytest.approx(4.5)
    assert found[hash_cost.CALL, "share_of_read"] == pytest.approx(1 / 3)
    assert ("plain read", "ratio:fastest") not in found
    assert {r.subset for r in records} == {"codes_1000"} and {r.bits for r in records} == {256}


def test_the_table_has_a_line_a_method() -> None:
    seconds = {hash_cost.CALL: [2e-3], "NumPy": [4e-3], "plain read": [1e-3]}
    records = [*key_records({"hash_keys": [9e-6]}, 256), *search_records(10_000, seconds, k=10)]
    lines = cost_table(records).splitlines()
    assert lines[0] == "key width, 256" and "codes, 10,000" in lines
    [ours] = [line.split() for line in lines if line.startswith(hash_cost.CALL)]
    assert ours[-3:] == ["2,000.0", "0.5", "0.5"]
    assert "x fastest" in lines[1] and "share of read" in lines[1]


def test_a_round_runs_each_in_its_turn_until_the_budget_is_spent() -> None:
    order: list[str] = []
    found = rounds({name: lambda n=name: order.append(n) for name in ("a", "b")}, budget=0.0)
    assert {name: len(times) for name, times in found.items()} == {"a": 5, "b": 5}
    turns = [name for at, name in enumerate(order) if at == 0 or order[at - 1] != name]
    assert turns == ["a", "b"] * 6  # the warm-up, and five rounds


def test_without_a_gpu_the_cpu_part_is_measured_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_hash, "SIZES", (700,))
    monkeypatch.setattr(hash_cost, "TURN", 1e-5)
    monkeypatch.setattr(hash_cost, "KEY_BUDGET", 0.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command(["hash", "--k", "3", "--budget", "0", "--out", str(tmp_path)])
    said = capsys.readouterr()
    assert "no GPU here: its part is left out" in said.err and "codes, 700" in said.out
    records = read_report(tmp_path / "report.json")
    assert {hash_cost.OP, hash_cost.CALL, "NumPy by words", "plain read", "hash_keys"} <= {
        r.method for r in records
    }


@pytest.mark.parametrize("k", ["0", "4097"])
def test_a_number_out_of_range_is_refused(k: str) -> None:
    with pytest.raises(ValueError, match=rf"--k {k}: give a number from 1 to 4096"):
        command(["hash", "--k", k])


@pytest.mark.gpu
def test_on_a_gpu_each_way_is_measured() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from keynet.evaluation.hash_cost_gpu import gpu_records

    found = {(r.subset, r.method) for r in gpu_records(200_000, 10, lambda line: None)}
    assert ("queries_64_codes_200000", "keynet, int8 products") in found
    assert ("queries_256_codes_200000", "torch, product and topk") in found
    assert ("keys_1024", "keynet, fused") in found


def command(arguments: list[str]) -> None:
    whole = argparse.ArgumentParser()
    bench_hash.add(whole.add_subparsers())
    args = whole.parse_args(arguments)
    args.run(args)
