from __future__ import annotations

import io
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from distill.teacher import TeacherOutput
from keynet.types import Request
from scripts import embedded


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
def sized_source(toy_source: Any) -> Any:
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
def toy_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> embedded.Encoders:
    """Encoders whose rows are stored, of teachers that count what they are asked."""
    cfg = embedded.configuration([f"distill.store={tmp_path / 'store'}", "data=easy_vqa"])
    made = {"lite0": Teacher("image"), "minilm": Teacher("text")}
    real = embedded.instantiate

    def instantiate(node: Any, **given: Any) -> Any:
        teacher = str(node.get("_target_", "")).startswith("distill.")
        return made[node.name] if teacher else real(node, **given)

    monkeypatch.setattr(embedded, "instantiate", instantiate)
    monkeypatch.setattr(embedded, "EPOCHS", 2)
    return embedded.Encoders(cfg)


@pytest.fixture
def asked_so_far() -> Any:
    """What tells how many requests the teachers of ``toy_encoders`` were asked to embed."""
    return lambda: Teacher.asked
