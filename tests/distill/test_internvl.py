"""InternVL's tower: whole checkpoint, shards, the tower alone; mean of patches, one tile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from distill.internvl import InternVLTeacher
from keynet.types import Request

FOLDERS = ("internvl_folder", "internvl_sharded_folder", "internvl_vision_folder")


@pytest.fixture(scope="module")
def teacher(internvl_folder: str) -> InternVLTeacher:
    return InternVLTeacher(name="internvl", path=internvl_folder)


def test_pictures(
    teacher: InternVLTeacher,
    internvl_folder: str,
    pictures: list[Image.Image],
    samples: list[Request],
) -> None:
    from transformers import AutoImageProcessor, InternVLForConditionalGeneration

    whole = InternVLForConditionalGeneration.from_pretrained(internvl_folder).eval()
    processor = AutoImageProcessor.from_pretrained(internvl_folder)
    inputs = processor(
        images=[p.convert("RGB") for p in pictures], crop_to_patches=False, return_tensors="pt"
    )
    with torch.no_grad():
        hidden = whole.model.vision_tower(inputs["pixel_values"]).last_hidden_state
    assert hidden.shape == (4, 17, 16)  # CLS and 4 x 4 patches
    found, text = teacher.encode(samples)
    torch.testing.assert_close(found[[0, 1, 3, 4]], hidden[:, 1:].mean(1), rtol=1e-4, atol=1e-5)
    assert (hidden[:, 1:].mean(1) - hidden.mean(1)).abs().max() > 1e-3  # CLS would be noticed
    assert torch.equal(found[2], torch.zeros(16))
    assert text is None and teacher.modalities == ("image",)


@pytest.mark.parametrize("fixture", FOLDERS[1:])
def test_shards_and_the_tower_alone_are_the_same_teacher(
    teacher: InternVLTeacher,
    samples: list[Request],
    fixture: str,
    request: pytest.FixtureRequest,
) -> None:
    other = InternVLTeacher(name="other", path=request.getfixturevalue(fixture))
    assert other.fingerprint == teacher.fingerprint
    assert torch.equal(other.encode(samples).image, teacher.encode(samples).image)


def test_newer_names_of_the_tower(
    teacher: InternVLTeacher, internvl_folder: str, changed: Callable[..., str]
) -> None:
    def rename(tensors: dict[str, Any]) -> None:
        for key in [key for key in tensors if key.startswith("vision_tower.")]:
            tensors[f"model.{key}"] = tensors.pop(key)

    path = changed(internvl_folder, weights=rename)
    assert InternVLTeacher(name="newer", path=path).fingerprint == teacher.fingerprint


def test_the_language_model_is_not_needed(
    teacher: InternVLTeacher, internvl_folder: str, changed: Callable[..., str]
) -> None:
    path = changed(internvl_folder)
    file = Path(path) / "model.safetensors"
    tower = {k: t for k, t in load_file(file).items() if k.startswith("vision_tower.")}
    save_file(tower, file, {"format": "pt"})
    assert InternVLTeacher(name="tower", path=path).fingerprint == teacher.fingerprint


def test_one_tile_of_the_tower_s_size_whatever_the_processor_says(
    internvl_folder: str, changed: Callable[..., str], samples: list[Request]
) -> None:
    sizes = {"size": {"height": 64, "width": 64}, "max_patches": 6}
    path = changed(
        internvl_folder, settings={"preprocessor_config.json": lambda c: c.update(sizes)}
    )
    other = InternVLTeacher(name="other", path=path)
    assert other.pixels(Image.new("RGB", (200, 50))).shape == (3, 32, 32)
    expected = InternVLTeacher(name="same", path=internvl_folder).encode(samples).image
    assert torch.equal(other.encode(samples).image, expected)


def test_fingerprint_follows_the_image_processor(
    teacher: InternVLTeacher, internvl_folder: str, changed: Callable[..., str]
) -> None:
    path = changed(
        internvl_folder,
        settings={"preprocessor_config.json": lambda c: c.update(image_std=[0.3, 0.2, 0.2])},
    )
    assert InternVLTeacher(name="other", path=path).fingerprint != teacher.fingerprint


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (3, 1), (2, 50)])
def test_tiny_pictures(teacher: InternVLTeacher, size: tuple[int, int]) -> None:
    assert teacher.pixels(Image.new("RGB", size, "red")).shape == (3, 32, 32)
