from __future__ import annotations

import argparse
import io
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image
from rich.console import Console

from distill.teacher import TeacherError, TeacherOutput
from keynet.evaluation.labels import Labels
from keynet.types import Request
from scripts import hashes


class Teacher:
    """Mean colours, or counts of letters, and what is peculiar to each picture or text."""

    dim, temperature = 26, 0.1
    asked = 0

    def __init__(self, modality: str) -> None:
        self.name, self.modalities, self.fingerprint = (
            modality,
            (modality,),
            modality.ljust(16, "0"),
        )

    def encode(self, requests: list[Request]) -> TeacherOutput:
        Teacher.asked += len(requests)
        rows = torch.zeros(len(requests), self.dim)
        for number, request in enumerate(requests):
            if self.modalities == ("image",):
                assert isinstance(request.image, bytes)
                pixels = np.asarray(Image.open(io.BytesIO(request.image)).convert("RGB"))
                rows[number, :3] = torch.tensor(pixels.mean((0, 1)) / 255 - 0.4)
            else:
                for letter in str(request.text).lower():
                    if letter in "abcdefghijklmnopqrstuvwxyz":
                        rows[number, ord(letter) - 97] += 1
            content = getattr(request, self.modalities[0])
            drawn = torch.Generator().manual_seed(zlib.crc32(str(content).encode()))
            rows[number] += 0.2 * torch.randn(self.dim, generator=drawn)
        found = {"image": None, "text": None, self.modalities[0]: rows}
        return TeacherOutput(**found)


@pytest.fixture
def source(toy_source: Any) -> Any:
    """The toy source, each size of a colour being a picture of its own with equivalents."""

    class Sizes(type(toy_source)):  # type: ignore[misc]
        def requests(self, split: str) -> list[Request]:
            made = []
            for request in super().requests(split):
                digest = zlib.crc32(request.image or b"")
                made.append(replace(request, tags={**request.tags, "picture": str(digest)}))
            return made

    return Sizes()


@pytest.fixture
def toy(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, argparse.Namespace]:
    cfg = hashes.configuration([f"distill.store={tmp_path / 'store'}", "data=easy_vqa"])
    made = {"lite0": Teacher("image"), "minilm": Teacher("text")}
    real = hashes.instantiate

    def instantiate(node: Any, **given: Any) -> Any:
        target = node.get("_target_", "")
        if target.startswith("distill."):
            return made[node.name]
        return source if target.startswith("data.") else real(node, **given)

    monkeypatch.setattr(hashes, "instantiate", instantiate)
    monkeypatch.setattr(hashes, "EPOCHS", 2)
    args = argparse.Namespace(rows=50, queries=20, bits=[16], seeds=[0, 1])
    return cfg, args


def test_all_hashes_are_compared_and_the_rows_are_stored(toy: Any) -> None:
    cfg, args = toy
    records = hashes.compare(cfg, args)
    methods = dict.fromkeys((r.method, r.bits) for r in records)
    assert list(methods) == [
        ("concat_l2", None), ("joint_hash", 16), ("orthohash", 16), ("itq", 16), ("pca_sign", 16),
    ]  # fmt: skip
    assert {r.metric for r in records} == {"map_at_all", "map_at_1000"}
    assert all(r.value is not None and 0 < r.value <= 1 and r.n == 20 for r in records)
    asked = Teacher.asked
    assert hashes.compare(cfg, args) == records
    assert Teacher.asked == asked
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(hashes.compared_table(records))
    assert "orthohash" in console.export_text()


def test_drift_of_each_modality_is_told(toy: Any) -> None:
    cfg, args = toy
    records = hashes.drift(cfg, args)
    assert {r.subset for r in records} == {
        f"{subset}:drift_{modality}:{half}"
        for subset in ("all", "same_drawing")
        for modality in ("image", "text")
        for half in ("before", "after")
    }
    known = [(r.subset, r.method, r.metric) for r in records]
    assert len(set(known)) == len(known)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(hashes.drift_table(records))
    assert "crowded_bucket_rate" in console.export_text()


def test_queries_and_database_share_no_picture(source: Any) -> None:
    both = [r for r in source.requests("test") if r.image is not None and r.text is not None]
    labels = Labels.of(both)
    asked, database = hashes.between_pictures(labels, 1000)
    assert not np.isin(labels.picture[asked], labels.picture[database]).any()
    assert np.isin(labels.group[asked], labels.group[database]).all()


@pytest.mark.parametrize("override", ["distill=none", "distill.store=null"])
def test_without_a_store(override: str) -> None:
    cfg = hashes.configuration([override])
    with pytest.raises(TeacherError, match="give distill=packaged_quick, and a store"):
        hashes.Encoders(cfg)


def test_the_losses_are_the_joint_ones() -> None:
    cfg = OmegaConf.to_container(hashes.configuration([]).loss)
    assert {name: entry["weight"] for name, entry in cfg.items()} == {
        "contrastive": 0.4, "response": 0.3, "hash_cosine": 0.3,
    }  # fmt: skip
