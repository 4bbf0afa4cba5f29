"""What the bench says of teachers, on tiny checkpoints: its structure and arithmetic, no times."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from data.datamodule import RequestDataModule
from distill.bridge import BridgeTeacher
from distill.distillation import Distillation
from distill.objectives import Feature
from distill.open_clip import OpenClipTeacher
from distill.sentence import SentenceTeacher
from distill.weighting import Uniform
from keynet.evaluation.teacher_cost import (
    WARM_UP,
    Sources,
    TeacherCost,
    cost_records,
    cost_table,
    sample_numbers,
)
from keynet.models.key_model import KeyModel
from keynet.training.losses import Contrast
from keynet.training.module import KeyModule
from scripts import bench

STEPS = 3
BATCHES = 2


class Counted:
    """Rows that remember what they were asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def rows(self, modality: str, ids: torch.Tensor) -> torch.Tensor:
        self.calls.append((modality, tuple(ids.tolist())))
        return torch.zeros(len(ids), 1)


@pytest.fixture
def data(toy_source: Any) -> RequestDataModule:
    return RequestDataModule(
        source=toy_source, image_size=16, max_tokens=32, long_text="error", vocab_size=300,
        batch_size=16, batches_per_epoch=BATCHES, seed=0, num_workers=0, store_stems=False,
    )  # fmt: skip


@pytest.fixture
def teachers(open_clip_folder: str, sentence_folder: str) -> dict[str, Any]:
    clip = OpenClipTeacher(name="clip", model=f"local-dir:{open_clip_folder}")
    sentence = SentenceTeacher(name="sentence", path=sentence_folder, max_tokens=16)
    return {"clip": clip, "sentence": sentence}


def distillation(teachers: dict[str, Any], store: Path) -> Distillation:
    return Distillation(
        teachers=teachers,
        objectives={"feature": {"weight": 1.0, "objective": Feature()}},
        weighting=Uniform(),
        standardise="running",
        key_dim=8,
        store=store,
        seed=0,
    )


def fit(
    model: KeyModel, data: RequestDataModule, taught: Distillation, cost: TeacherCost, steps: int
) -> None:
    module = KeyModule(
        model=model,
        losses={"group": {"weight": 1.0, "loss": Contrast(vector="key", over="group")}},
        distillation=taught,
        learning_rate=1e-3, image_learning_rate=1e-3, weight_decay=0.0, warmup_share=0.1,
    )  # fmt: skip
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=steps, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[cost],
    )  # fmt: skip
    trainer.fit(module, datamodule=data)


def test_stores_and_teachers_give_the_same_rows_and_bytes_are_counted(
    data: RequestDataModule, teachers: dict[str, Any], tmp_path: Path
) -> None:
    taught = distillation(teachers, tmp_path)
    taught.attach(data.samples, "cpu", torch.float32)
    found = bench.sources(taught, data)
    ids = torch.tensor([0, 2, 3])
    assert [m for m, _ in found.stored] == [m for m, _ in found.asked] == ["image", "text", "text"]
    for (modality, stored), (_, asked) in zip(found.stored, found.asked, strict=True):
        # Chunks of other sizes round otherwise, by a bf16 step at most.
        assert torch.allclose(
            stored.rows(modality, ids), asked.rows(modality, ids), rtol=2**-7, atol=1e-4
        )
    pictures, texts = len(data.samples.pictures), len(data.samples.texts)
    assert found.values == 12 * (pictures + texts) + 16 * texts
    assert found.bytes == sum(f.stat().st_size for f in tmp_path.rglob("*.safetensors"))
    assert found.bytes > 2 * found.values  # bf16, and the files' headers


def test_a_bridge_reads_its_parts_again_and_asks_them_once(
    data: RequestDataModule, teachers: dict[str, Any], tmp_path: Path
) -> None:
    bridge = BridgeTeacher(
        name="bridge", image=teachers["clip"], text=teachers["sentence"], weights=None
    )
    assert [(m, t.name) for m, t in bench.parts(bridge)] == [
        ("image", "clip"),
        ("text", "sentence"),
    ]
    distillation(teachers, tmp_path).attach(data.samples, "cpu", torch.float32)
    found = bench.sources(distillation({**teachers, "bridge": bridge}, tmp_path), data)
    assert [m for m, _ in found.stored] == ["image", "text", "text", "image", "text"]
    assert [m for m, _ in found.asked] == ["image", "text", "text"]


def test_each_step_asks_both_for_the_rows_of_its_batch(
    tiny_key_model: Callable[[], KeyModel],
    data: RequestDataModule,
    teachers: dict[str, Any],
    tmp_path: Path,
) -> None:
    taught, stored, asked = distillation(teachers, tmp_path), Counted(), Counted()
    lines: list[str] = []
    cost = TeacherCost(
        lambda: Sources([("image", stored), ("text", stored)], [("text", asked)], 10, 25),
        STEPS,
        lines.append,
    )
    fit(tiny_key_model(), data, taught, cost, STEPS + WARM_UP)
    loader = data.train_dataloader()
    batches = []
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        batches += [sample_numbers(batch) for batch in loader]
    wanted = [(m, tuple(b[m].tolist())) for b in batches for m in ("image", "text")]
    assert stored.calls == wanted[: 2 * (STEPS + WARM_UP)]
    assert asked.calls == stored.calls[1::2]
    assert len(cost.step) == len(cost.read) == len(cost.asked) == STEPS
    assert len(lines) == STEPS + WARM_UP
    assert lines[-1].startswith("step 5 of 5: ") and lines[-1].endswith("about 0 min 00 s left")


def test_figures_are_quotients_of_medians() -> None:
    cost = TeacherCost(lambda: Sources([], [], 0, 0), 3, print)
    cost.sources = Sources([], [], values=1000, bytes=2100)
    cost.step, cost.read, cost.asked = [0.5, 0.2, 0.4], [0.001, 0.002, 0.009], [3.0, 1.0, 2.0]
    records = cost_records(cost, "toy", "clip", batches=50)
    value = {(r.subset, r.metric): r.value for r in records}
    assert value == pytest.approx(
        {
            ("step", "latency_ms_p50"): 400,
            ("store", "latency_ms_p50"): 2,
            ("asked", "latency_ms_p50"): 2000,
            ("store", "share_of_step"): 0.002 / 0.4,
            ("store", "seconds_saved_per_epoch"): (2.0 - 0.002) * 50,
            ("store", "bytes_per_value"): 2.1,
        }
    )
    assert {(r.data, r.split, r.method) for r in records} == {("toy", "train", "clip")}
    table = cost_table(records, 50, 240)
    assert "saved in an epoch of 50 batches of 240        99.9 s" in table
    assert "0.50 %" in table


def test_a_training_that_is_too_short_is_an_error() -> None:
    with pytest.raises(ValueError, match="steps=0"):
        TeacherCost(lambda: Sources([], [], 0, 0), 0, print)
    with pytest.raises(ValueError, match="ended before step 3"):
        cost_records(TeacherCost(lambda: Sources([], [], 0, 0), 1, print), "toy", "clip", 50)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.py", "teachers", *arguments])
    bench.main()


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_command_trains_a_few_steps_and_reports(
    sentence_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    command(
        monkeypatch, "--steps", "2", "--out", str(tmp_path / "out"), "data=easy_vqa",
        "data.source.fold=dev", "data.image_size=32", "encoder.image.pretrained=false",
        "encoder.image.frozen_blocks=8", "encoder.image.places=0", "encoder.dims.image=1280",
        "encoder.text.depth=1", "data.store_stems=false",
        "batch_size=12", "steps_per_checkpoint=2", "distill/objectives=feature",
        "~distill.teachers.lite0", "~distill.teachers.bridge",
        f"distill.teachers.minilm.path={sentence_folder}",
        "+distill.teachers.minilm.max_tokens=16", f"distill.store={tmp_path / 'store'}",
    )  # fmt: skip
    records = json.loads((tmp_path / "out" / "report.json").read_text())["records"]
    found = {(r["subset"], r["metric"]): r for r in records}
    assert {r["method"] for r in records} == {"minilm"}
    assert {r["data"] for r in records} == {"easy_vqa_dev"}
    ms = {name: found[name, "latency_ms_p50"]["value"] for name in ("step", "store", "asked")}
    assert found["store", "share_of_step"]["value"] == pytest.approx(ms["store"] / ms["step"])
    saved = found["store", "seconds_saved_per_epoch"]["value"]
    assert saved == pytest.approx((ms["asked"] - ms["store"]) * 2 / 1000)
    (file,) = (tmp_path / "store").rglob("*.safetensors")
    values = found["store", "bytes_per_value"]
    assert values["value"] == pytest.approx(file.stat().st_size / values["n"])
    assert "an epoch of 2 batches of 12" in capsys.readouterr().out


def test_the_command_needs_stored_teachers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no stored teachers to measure"):
        command(monkeypatch, "distill=none")
