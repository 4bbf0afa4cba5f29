"""CLIP's embeddings are those of the network called by hand on its processor's own output."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from distill.clip import ClipTeacher
from distill.teacher import TEMPERATURE
from keynet.types import Request


@pytest.fixture(scope="module")
def teacher(clip_folder: str) -> ClipTeacher:
    return ClipTeacher(name="clip", path=clip_folder)


def by_hand(folder: str, picture: Image.Image | None, text: str | None) -> Tensor:
    from transformers import CLIPModel, CLIPProcessor

    network = CLIPModel.from_pretrained(folder).eval()
    processor = CLIPProcessor.from_pretrained(folder)
    with torch.no_grad():
        if picture is not None:
            inputs: Any = processor(images=picture, return_tensors="pt")
            hidden = network.vision_model(**inputs).pooler_output
            return network.visual_projection(hidden)[0]
        inputs = processor(text=text, return_tensors="pt", truncation=True, max_length=16)
        return network.text_projection(network.text_model(**inputs).pooler_output)[0]


def test_pictures(
    teacher: ClipTeacher, clip_folder: str, pictures: list[Image.Image], samples: list[Request]
) -> None:
    found = teacher.encode(samples).image
    for row, picture in zip((0, 1, 3, 4), pictures, strict=True):
        expected = by_hand(clip_folder, picture.convert("RGB"), None)
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[2], torch.zeros(12))


def test_texts(teacher: ClipTeacher, clip_folder: str, samples: list[Request]) -> None:
    found = teacher.encode(samples).text
    for row in (0, 2, 3):  # the last one is longer than 16 tokens
        expected = by_hand(clip_folder, None, samples[row].text)
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[[1, 4]], torch.zeros(2, 12))


def test_width_modalities_and_temperature(teacher: ClipTeacher, samples: list[Request]) -> None:
    assert (teacher.name, teacher.dim) == ("clip", 12)
    assert teacher.modalities == ("image", "text")
    assert teacher.temperature == pytest.approx(math.exp(-2.6592), rel=1e-5)  # CLIP's start
    assert teacher.temperature != TEMPERATURE


def test_the_temperature_is_the_checkpoint_s(clip_folder: str, changed: Callable[..., str]) -> None:
    path = changed(clip_folder, weights=lambda t: t["logit_scale"].fill_(math.log(100)))
    assert ClipTeacher(name="clip", path=path).temperature == pytest.approx(0.01)


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (3, 1), (2, 50)])
def test_tiny_pictures(teacher: ClipTeacher, size: tuple[int, int]) -> None:
    assert teacher.pixels(Image.new("RGB", size, "red")).shape == (3, 32, 32)
