from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from distill.store import Store, StoreError, samples_digest, store_folder
from distill.teacher import TeacherError
from scripts.precompute_teachers import run

ROOT = Path(__file__).parents[2]
# What a configuration names must be importable.
TOY = """
import zlib

import torch

from distill.teacher import TeacherOutput
from keynet.types import Request


class Source:
    name, attribution, disjoint_phrasings = "toy", (), False

    def requests(self, split):
        return [Request(image=b"%d" % n, text=f"text {n % 7}", group=str(n)) for n in range(20)]


class Teacher:
    dim, temperature = 8, 0.1
    encoded = 0

    def __init__(self, name, modality):
        self.name, self.modalities, self.fingerprint = name, (modality,), name.ljust(16, "0")

    def to(self, device, dtype):
        pass

    def encode(self, requests):
        Teacher.encoded += len(requests)
        rows = [zlib.crc32(str(getattr(r, self.modalities[0])).encode()) for r in requests]
        drawn = [torch.Generator().manual_seed(n) for n in rows]
        found = torch.stack([torch.randn(8, generator=one) for one in drawn])
        return TeacherOutput(**({"image": None, "text": None} | {self.modalities[0]: found}))
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "toy_teaching.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield importlib.import_module("toy_teaching")
    del sys.modules["toy_teaching"]


def composed(store: Path | None) -> Any:
    """Two teachers and a bridge over the same two, as in ``distill=packaged``."""
    eye, tongue = (
        {"_target_": "toy_teaching.Teacher", "name": name, "modality": modality}
        for name, modality in (("eye", "image"), ("tongue", "text"))
    )
    bridge = {
        "_target_": "distill.bridge.BridgeTeacher", "name": "bridge",
        "image": "${distill.teachers.eye}", "text": "${distill.teachers.tongue}",
    }  # fmt: skip
    feature = {"weight": 1.0, "objective": {"_target_": "distill.objectives.Feature"}}
    distill = {
        "_target_": "distill.distillation.Distillation",
        "teachers": {"eye": eye, "tongue": tongue, "bridge": bridge},
        "objectives": {"feature": feature},
        "weighting": {"_target_": "distill.weighting.Uniform"},
        "standardise": "phi_s", "key_dim": 4, "store": None if store is None else str(store),
        "seed": 0,
    }  # fmt: skip
    data = {
        "_target_": "data.datamodule.RequestDataModule",
        "source": {"_target_": "toy_teaching.Source"},
        "image_size": 16, "max_tokens": 16, "long_text": "error", "vocab_size": 270,
        "batch_size": 4, "batches_per_epoch": 1, "seed": 0, "num_workers": 0,
        "store_stems": False,
    }  # fmt: skip
    trainer = {"accelerator": "cpu", "precision": "32-true"}
    return OmegaConf.create({"distill": distill, "data": data, "trainer": trainer})


def test_each_teacher_and_each_part_of_a_bridge_is_stored_once(
    toy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    run(composed(store))
    assert toy.Teacher.encoded == 20 + 7  # pictures, texts
    said = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert set(said) == {"eye", "tongue"}
    assert {Path(folder) for folder in said.values()} == set(store.iterdir())
    run(composed(store))
    assert toy.Teacher.encoded == 27


def test_what_it_stores_is_what_training_opens(toy: Any, tmp_path: Path) -> None:
    from data.datamodule import number_samples

    run(composed(tmp_path / "store"))
    source, teacher = toy.Source(), toy.Teacher("eye", "image")
    samples = number_samples(source, source.requests("train"))
    data = samples_digest(samples)
    Store(store_folder(tmp_path / "store", teacher, data), teacher, samples, data)
    with pytest.raises(StoreError, match="is no store of embeddings"):
        Store(store_folder(tmp_path / "store", teacher, "other"), teacher, samples, "other")


@pytest.mark.parametrize("distill", [{}, None])
def test_nothing_to_store(toy: Any, distill: Any) -> None:
    nothing = composed(None)
    if distill is not None:
        nothing.distill = distill
    with pytest.raises(TeacherError, match="no teachers to store: give distill=packaged or"):
        run(nothing)


@pytest.mark.slow
def test_two_processes_store_what_one_does(toy: Any, tmp_path: Path) -> None:
    run(composed(tmp_path / "one"))
    whole = composed(tmp_path / "two")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "toy.yaml").write_text(OmegaConf.to_yaml(whole))
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            "-m", "scripts.precompute_teachers",
            f"--config-path={tmp_path / 'conf'}", "--config-name=toy",
            f"hydra.run.dir={tmp_path / 'hydra'}",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "modules"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, expected = (
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*.*")}
        for n in ("two", "one")
    )
    assert len(expected) == 4
    assert found == expected
