from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from aligners.affine import FITS, neighbourhood
from data import held_out
from data.datamodule import number_samples
from distill.store import StoreError, samples_digest, store_folder, write_store
from distill.teacher import TeacherError
from keynet.evaluation import isometry, tsne
from keynet.evaluation.report import read_report
from keynet.types import KeySpace, Request
from scripts import diagnose
from scripts.diagnose import run

CONF = Path(__file__).parents[2] / "conf"
# What a configuration names must be importable.
TOY = """
import re

import torch

from distill.teacher import TeacherOutput
from keynet.types import Request


class Source:
    name, attribution, disjoint_phrasings = "toy", ("Pictures: nobody.",), False

    def __init__(self, train=240, test=96):
        self.counts = {"train": (0, train), "test": (1000, test)}

    def requests(self, split):
        return self.captions(split)

    def captions(self, split):
        first, count = self.counts[split]
        return [
            Request(image=b"%d" % n, text=f"{word} {n}", group=str(n), entity=str(n))
            for n in range(first, first + count)
            for word in ("a", "the")
        ]


class Bare:
    name, attribution, disjoint_phrasings = "bare", (), False

    def requests(self, split):
        return [Request(image=b"1", text="1", group="1")]


class Teacher:
    '''Linear in a latent of the number that picture and captions share.'''

    temperature = 0.1
    encoded = 0

    def __init__(self, name, modality, dim):
        self.name, self.modalities, self.dim = name, (modality,), dim
        self.fingerprint = name.ljust(16, "0")

    def to(self, device, dtype):
        pass

    def encode(self, requests):
        Teacher.encoded += len(requests)
        to_rows = torch.randn(6, self.dim, generator=torch.Generator().manual_seed(self.dim))
        found = []
        for request in requests:
            content = str(getattr(request, self.modalities[0]))
            number = int(re.findall(r"[0-9]+", content)[0])
            latent = torch.randn(6, generator=torch.Generator().manual_seed(number))
            own = torch.Generator().manual_seed(len(content))
            found.append(latent @ to_rows + 0.2 * torch.randn(self.dim, generator=own) + 1)
        none = {"image": None, "text": None}
        return TeacherOutput(**(none | {self.modalities[0]: torch.stack(found)}))
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "toy_diagnosing.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setattr(isometry, "RESAMPLES", 20)
    monkeypatch.setitem(FITS, "neighbourhood", partial(neighbourhood, steps=30, batch_size=100))
    monkeypatch.setattr(tsne, "_tsne", lambda rows, seed: rows[:, :2].astype(np.float64))
    yield importlib.import_module("toy_diagnosing")
    del sys.modules["toy_diagnosing"]


def config(tmp_path: Path, source: str = "Source", **changes: Any) -> Any:
    eye, tongue = (
        {"_target_": "toy_diagnosing.Teacher", "name": name, "modality": modality, "dim": dim}
        for name, modality, dim in (("eye", "image", 16), ("tongue", "text", 12))
    )
    bridge = {
        "_target_": "distill.bridge.BridgeTeacher", "name": "bridge", "image": eye, "text": tongue,
        "dim": 8, "epochs": 8, "batch_size": 60, "learning_rate": 1e-2,
    }  # fmt: skip
    made = {
        "data": {"source": {"_target_": f"toy_diagnosing.{source}"}},
        "distill": {"teachers": {"bridge": bridge}, "store": str(tmp_path / "store")},
        "export": None, "pairs": 400, "seed": 0, "out": str(tmp_path / "out"),
    }  # fmt: skip
    return OmegaConf.create(made | changes)


def test_every_method_is_measured_and_drawn(
    toy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(config(tmp_path))
    found = {
        (r.method, r.subset, r.metric): r.value for r in read_report(tmp_path / "out/report.json")
    }
    methods = list(dict.fromkeys(method for method, _, _ in found))
    assert methods == [
        "unaligned", "affine:least_squares", "affine:procrustes", "affine:neighbourhood",
        "teacher:bridge",
    ]  # fmt: skip
    assert found["unaligned", "text_to_image", "recall_at_10"] is None
    for method in ("affine:least_squares", "affine:neighbourhood", "teacher:bridge"):
        recall = found[method, "text_to_image", "recall_at_10"]
        assert recall is not None and recall > 0.8, method
    for method in methods[1:4]:
        assert found[method, "all", "distortion_within_text"] == 0  # it stays
        assert (found[method, "all", "distortion_within_image"] or 0) > 0
        assert found[method, "all", "distance_of_pairs"] < found[method, "all", "distance_across"]
    said = capsys.readouterr().out
    assert "Fitted on 400 of 480 pairs of a training picture and its caption." in said
    assert "Pictures: nobody." in said
    page = (tmp_path / "out/report.html").read_text()
    assert "data:image/png;base64," in page and "affine:procrustes" in page


def test_photographs_that_an_export_was_trained_on_are_left_out(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def vectors(requests: Sequence[Request]) -> tuple[np.ndarray, np.ndarray]:
        rows = np.random.default_rng(0).normal(size=(2, len(requests), 8)).astype(np.float32)
        return rows[0], rows[1]

    space = KeySpace("mine", 1, 8, 64, "0" * 16)
    export = types.SimpleNamespace(space=space, encode_modalities=vectors)
    trained = held_out.content_numbers(toy.Source().captions("test")[:10])  # five photographs
    monkeypatch.setattr(diagnose, "load_key_model", lambda _: export)
    monkeypatch.setattr(held_out, "read_trained_on", lambda _: trained)
    run(config(tmp_path, export="export"))
    records = read_report(tmp_path / "out/report.json")
    (recall,) = (
        r for r in records
        if (r.method, r.subset, r.metric) == ("mine", "text_to_image", "recall_at_10")
    )  # fmt: skip
    assert recall.n == 2 * (96 - 5)
    (left_out,) = (r for r in records if r.metric == "left_out")
    assert (left_out.subset, left_out.value, left_out.n) == ("captions", 10, 2 * 96)
    said = "test: 10 of 192 captions left out, since the model was trained on their pictures"
    assert said in capsys.readouterr().out
    assert said in (tmp_path / "out/report.html").read_text()


def test_stored_rows_are_read_and_not_made_again(toy: Any, tmp_path: Path) -> None:
    cfg = config(tmp_path)
    source = toy.Source()
    samples = number_samples(source, source.requests("train"))
    data = samples_digest(samples)
    folders = []
    for name, modality, dim in (("eye", "image", 16), ("tongue", "text", 12)):
        teacher = toy.Teacher(name, modality, dim)
        folders.append(store_folder(cfg.distill.store, teacher, data))
        write_store(folders[-1], teacher, samples, data)
    toy.Teacher.encoded = 0
    run(cfg)
    assert toy.Teacher.encoded == 96 + 2 * 96  # the test split alone
    for shard in folders[0].glob("*.safetensors"):
        shard.unlink()
    with pytest.raises(StoreError, match="is missing or cut off"):
        run(cfg)


def test_data_without_captions_or_with_few_and_no_encoders_are_refused(
    toy: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="data bare has no captions to diagnose"):
        run(config(tmp_path, "Bare"))
    few = {"source": {"_target_": "toy_diagnosing.Source", "test": 89}}
    with pytest.raises(
        ValueError, match=r"toy has too few photographs .*: 89 .*choose data=flickr8k"
    ):
        run(config(tmp_path, data=few))
    few = {"source": {"_target_": "toy_diagnosing.Source", "train": 6}}
    with pytest.raises(ValueError, match=r"data toy has 12 pairs .* need at least 13; choose"):
        run(config(tmp_path, data=few))
    with pytest.raises(TeacherError, match="no encoders to map between: give distill=packaged"):
        run(config(tmp_path, distill={}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": "foo"}, "pairs=foo: expected a whole number"),
        ({"pairs": 1.5}, "pairs=1.5: expected a whole number"),
        ({"pairs": True}, "pairs=True: expected a whole number"),
        ({"pairs": -1}, "pairs=-1: maps of these encoders need at least pairs=13$"),
        ({"pairs": 1}, "pairs=1: maps of these encoders need at least pairs=13$"),
        ({"seed": "foo"}, "seed=foo: expected a whole number from 0 to"),
        ({"seed": -1}, "seed=-1: expected a whole number"),
        ({"export": 3}, r"export=3: expected a path, such as export=\./3"),
        ({"distill": {"store": 3}}, r"distill.store=3: expected a path"),
        ({"out": 3}, "out=3: expected a path"),
    ],
)
def test_values_that_cannot_be_are_refused(
    toy: Any, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(config(tmp_path, **changes))


@pytest.mark.parametrize("data", ["flickr8k", "emoji"])
def test_its_configuration_composes(data: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("diagnose", overrides=[f"data={data}", "out=there"])
    bridge = OmegaConf.to_container(cfg.distill.teachers.bridge, resolve=True)
    assert bridge["image"]["image_size"] == 224  # type: ignore[index, call-overload]
    assert OmegaConf.to_container(cfg.data.source, resolve=True)
