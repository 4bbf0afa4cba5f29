"""The bench by a clock that only its encoders move, and graphs of tiny models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from data.tokenizer import train_tokenizer
from keynet.evaluation import bench
from keynet.evaluation.bench import bench_records, bench_table, busy, measure
from keynet.evaluation.peers import (
    Encoder,
    exported_encoder,
    key_encoder,
    open_clip_encoder,
)
from keynet.export.exporter import export_key_model
from keynet.models.key_model import KeyModel
from keynet.preprocess import Preprocessor
from keynet.types import Request

Make = Callable[[str, list[float]], Encoder]


@pytest.fixture(scope="module")
def tiny_model(tiny_key_model: Callable[[], KeyModel]) -> KeyModel:
    return tiny_key_model().eval()


@pytest.fixture(scope="module")
def tiny_export(tmp_path_factory: pytest.TempPathFactory, tiny_model: KeyModel) -> Path:
    tokenizer = train_tokenizer({"what is it", "is it red"}, vocab_size=300)
    folder = tmp_path_factory.mktemp("run") / "export"
    golden = [Request(text="is it red")]
    export_key_model(tiny_model, Preprocessor(16, tokenizer, 32), folder, "tiny", 1, golden)
    return folder


@pytest.fixture
def tiny_peer(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that open_clip knows for as long as the test runs."""
    from open_clip import factory

    vision = {"image_size": 32, "layers": 1, "width": 16, "patch_size": 16, "head_width": 8}
    text = {"context_length": 16, "vocab_size": 99, "width": 16, "heads": 2, "layers": 1}
    config = {"embed_dim": 12, "vision_cfg": vision, "text_cfg": text}
    monkeypatch.setitem(factory._MODEL_CONFIGS, "tiny-peer", config)
    return "tiny-peer"


@pytest.fixture
def order() -> list[str]:
    return []


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, order: list[str]) -> Make:
    """An encoder that takes the given seconds, one after the other and the last for ever."""
    now = 0.0
    monkeypatch.setattr(bench, "perf_counter", lambda: now)

    def made(name: str, seconds: list[float]) -> Encoder:
        left = list(seconds)

        def run(*inputs: torch.Tensor) -> None:
            nonlocal now
            order.append(name)
            now += left.pop(0) if len(left) > 1 else left[0]

        return Encoder(name, run, lambda batch: (torch.zeros(batch),), 1000, "8 px, 4 tokens")

    return made


def run(encoders: list[Encoder], rounds: int = 3, budget: float = 1e9, threads: int = 1):  # type: ignore[no-untyped-def]
    lines: list[str] = []
    return measure(encoders, {1: rounds}, [threads], budget, lines.append), lines


def test_rounds_run_every_encoder_once_and_turn_about(make: Make, order: list[str]) -> None:
    found, _ = run([make("a", [0.1]), make("b", [0.2])])
    assert order[:6] == ["a"] * 3 + ["b"] * 3  # warm-up
    assert order[6:] == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(times) for name, times in found[1, 1].items()} == {"a": 3, "b": 3}


def test_warm_up_is_not_counted_and_short_for_the_slow(make: Make, order: list[str]) -> None:
    found, _ = run([make("a", [9.0, 9.0, 9.0, 1.0, 3.0, 2.0]), make("b", [7.0])], rounds=2)
    assert order[:2] == ["a", "b"]
    assert found[1, 1]["a"] == pytest.approx([9.0, 9.0])


def test_a_budget_ends_the_runs_of_one_encoder_but_never_before_two(
    make: Make, order: list[str]
) -> None:
    found, _ = run([make("slow", [6.0]), make("quick", [0.1])], rounds=9, budget=1.0)
    assert {name: len(times) for name, times in found[1, 1].items()} == {"slow": 2, "quick": 7}


def test_progress_names_the_run_and_estimates_what_is_left(make: Make) -> None:
    _, lines = run([make("a", [60.0]), make("b", [120.0])], rounds=2)
    assert lines[0] == "batch 1, threads 1, a: warm-up, 60,000.0 ms"  # b has not run yet
    # Two runs of each, warmed up.
    assert lines[1] == "batch 1, threads 1, b: warm-up, 120,000.0 ms, about 6 min 00 s left"
    assert lines[-1].endswith("run 2 of 2, 60,000.0 ms, about 0 min 00 s left")


def test_the_estimate_holds_settings_to_come_in_proportion(make: Make) -> None:
    lines: list[str] = []
    measure([make("a", [10.0])], {1: 2, 4: 2}, [1], 1e9, lines.append)
    # Two runs of 10 s, then a warm-up and two runs of 40 s.
    assert lines[0].endswith("about 2 min 20 s left")


def test_ratios_are_quotients_of_medians(make: Make) -> None:
    encoders = [make("ours", [0.0, 0.0, 0.0, 0.1, 0.5, 0.2]), make("peer", [0.8])]
    found, _ = run(encoders)
    records = bench_records(encoders, ["peer"], found, "machine busy")
    value = {(r.method, r.metric): r for r in records}
    assert value["ours", "latency_ms_p50"].value == pytest.approx(200)
    assert value["ours", "latency_ms_p50"].low == pytest.approx(100)
    assert value["ours", "latency_ms_p50"].high == pytest.approx(500)
    assert value["ours", "ratio:peer"].value == pytest.approx(0.25)
    assert value["peer", "ratio:peer"].value == 1
    assert value["ours", "params"].value == 1000
    assert value["ours", "latency_ms_p50"].note == "8 px, 4 tokens; machine busy"
    assert {r.subset for r in records} == {"all", "batch_1_threads_1"}
    table = bench_table(records).splitlines()
    assert table[0] == "batch 1 threads 1"
    assert table[1].split() == ["ms", "x", "peer", "params", "runs", "of"]
    assert table[2].split()[:6] == ["ours", "200.0", "0.25", "0.00", "M", "3"]


def test_a_busy_machine_is_said() -> None:
    assert busy(0.1) == ""
    assert busy(3.2).startswith("machine busy, load 3.2 on ")


def test_threads_are_put_back(make: Make) -> None:
    before = torch.get_num_threads()
    run([make("a", [0.1])], threads=1)
    assert torch.get_num_threads() == before


def test_what_cannot_be_measured_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="two encoders are called a"):
        run([make("a", [1.0]), make("a", [1.0])])
    with pytest.raises(ValueError, match="nothing to measure"):
        run([])
    with pytest.raises(ValueError, match="rounds 0: give a positive number"):
        run([make("a", [1.0])], rounds=0)
    with pytest.raises(ValueError, match=r"threads 4096: this process may use \d+ cores"):
        run([make("a", [1.0])], threads=4096)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    from scripts.bench import main

    monkeypatch.setattr(sys, "argv", ["bench.py", "latency", *arguments])
    main()


def test_the_command_measures_exports_beside_peers(
    tiny_export: Path, tiny_peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    command(
        monkeypatch, "--export", f"mine={tiny_export}", "--peer", tiny_peer, "--batch", "1", "2",
        "--threads", "1", "--rounds", "3", "2", "--out", str(tmp_path),
    )  # fmt: skip
    report = json.loads((tmp_path / "report.json").read_text())
    found = {(r["subset"], r["method"], r["metric"]): r for r in report["records"]}
    subsets = ("batch_1_threads_1", "batch_2_threads_1")
    assert set(found) == {
        *(("all", name, "params") for name in ("mine", tiny_peer)),
        *(
            (subset, name, metric)
            for subset in subsets
            for name in ("mine", tiny_peer)
            for metric in ("latency_ms_p50", f"ratio:{tiny_peer}")
        ),
    }
    for subset, rounds in zip(subsets, (3, 2), strict=True):
        mine, peer = (found[subset, name, "latency_ms_p50"] for name in ("mine", tiny_peer))
        assert (mine["n"], peer["n"]) == (rounds, rounds)
        ratio = found[subset, "mine", f"ratio:{tiny_peer}"]["value"]
        assert ratio == pytest.approx(mine["value"] / peer["value"])
    assert report["command"].startswith("python bench.py latency --export mine=")
    printed = capsys.readouterr().out
    assert "batch 2 threads 1" in printed and "decoding and tokenising are left out" in printed


@pytest.mark.parametrize(
    ("experiment", "least", "most"),
    [
        ("keynet_tiny", 5e6, 8.2e6),
        pytest.param("keynet_small", 8.2e6, 22.1e6, marks=pytest.mark.slow),
    ],
)
def test_students_are_experiments_with_random_weights_once_a_resolution(
    experiment: str, least: float, most: float
) -> None:
    from scripts.bench import encoders, parser

    arguments = ("--student", experiment, "--image-size", "32", "48", "--peer")
    found = list(encoders(parser().parse_args(["latency", *arguments])))
    assert [encoder.name for encoder in found] == [f"{experiment}@32", f"{experiment}@48"]
    assert [encoder.shape for encoder in found] == ["32 px, 80 tokens", "48 px, 80 tokens"]
    assert all(least < encoder.num_parameters < most for encoder in found)
    key, image, text = found[0].run(*found[0].inputs(1))[:3]
    assert key.shape == image.shape == text.shape == (1, 256)


def test_the_command_refuses_arguments_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--export x: expected NAME=PATH"):
        command(monkeypatch, "--export", "x", "--peer")
    with pytest.raises(ValueError, match="3 numbers after --rounds and 2 after --batch"):
        command(monkeypatch, "--rounds", "1", "2", "3", "--peer")


def test_a_key_model_runs_at_its_resolution_and_length(tiny_model: KeyModel) -> None:
    encoder = key_encoder("tiny", tiny_model, 16, 80)
    images, image_mask, tokens, mask = encoder.inputs(3)
    assert (images.dtype, tuple(images.shape)) == (torch.uint8, (3, 3, 16, 16))
    assert tuple(tokens.shape) == tuple(mask.shape) == (3, 32)  # the model takes no more
    assert image_mask.all() and mask.all()
    assert encoder.shape == "16 px, 32 tokens"
    assert encoder.num_parameters == sum(p.numel() for p in tiny_model.parameters())
    key = encoder.run(*encoder.inputs(5))[0]
    assert torch.allclose(key, tiny_model(*encoder.inputs(5)).key, atol=1e-5)


def test_an_export_has_its_own_resolution(tiny_export: Path, tiny_model: KeyModel) -> None:
    encoder = exported_encoder("mine", tiny_export, 8)
    images, _, tokens, _ = encoder.inputs(2)
    assert tuple(images.shape) == (2, 3, 16, 16) and tuple(tokens.shape) == (2, 8)
    assert encoder.num_parameters == sum(p.numel() for p in tiny_model.parameters())
    assert tuple(encoder.run(images, *encoder.inputs(2)[1:])[0].shape) == (2, 8)


def test_a_peer_runs_at_its_resolution_and_context(tiny_peer: str) -> None:
    encoder = open_clip_encoder(tiny_peer)
    images, tokens = encoder.inputs(3)
    assert (images.dtype, tuple(images.shape)) == (torch.float32, (3, 3, 32, 32))
    assert tuple(tokens.shape) == (3, 16)
    assert encoder.shape == "32 px, 16 tokens"
    image, text = encoder.run(images, tokens)[:2]
    assert tuple(image.shape) == tuple(text.shape) == (3, 12)
    assert torch.allclose(image.norm(dim=1), torch.ones(3))


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(ValueError, match="open_clip knows no model 'ViT-Q'"):
        open_clip_encoder("ViT-Q")


def test_a_graph_that_keeps_the_traced_batch_is_refused() -> None:
    class Keeps(nn.Module):
        def forward(self, images, image_mask, tokens, token_mask):  # type: ignore[no-untyped-def]
            return (images.float().sum((1, 2, 3)) * float(len(images)),)

    with pytest.raises(ValueError, match="graph of Keeps differs"):
        key_encoder("keeps", Keeps(), 4, 4)
