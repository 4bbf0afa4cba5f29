"""SigLIP and SigLIP 2: the network called by hand, capitals, padding, NaFlex."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image

from distill.siglip import SiglipTeacher
from distill.teacher import TeacherError
from keynet.types import Request


@pytest.fixture(scope="module", params=["siglip_folder", "siglip2_folder"])
def folder(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def teacher(folder: str) -> SiglipTeacher:
    return SiglipTeacher(name="siglip", path=folder)


def parts(folder: str) -> tuple[Any, Any]:
    from transformers import SiglipModel, SiglipProcessor

    return SiglipModel.from_pretrained(folder).eval(), SiglipProcessor.from_pretrained(folder)


def test_pictures(
    teacher: SiglipTeacher, folder: str, pictures: list[Image.Image], samples: list[Request]
) -> None:
    network, processor = parts(folder)
    inputs = processor(images=[p.convert("RGB") for p in pictures], return_tensors="pt")
    with torch.no_grad():
        expected = network.vision_model(**inputs).pooler_output
    found = teacher.encode(samples).image
    torch.testing.assert_close(found[[0, 1, 3, 4]], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[2], torch.zeros(16))


def test_texts(teacher: SiglipTeacher, folder: str, samples: list[Request]) -> None:
    network, processor = parts(folder)
    texts = [samples[row].text.lower() for row in (0, 2, 3)]
    inputs = processor(
        text=texts, padding="max_length", truncation=True, max_length=16, return_tensors="pt"
    )
    assert inputs["input_ids"].shape == (3, 16)
    with torch.no_grad():
        expected = network.text_model(**inputs).pooler_output
    found = teacher.encode(samples).text
    torch.testing.assert_close(found[[0, 2, 3]], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[[1, 4]], torch.zeros(2, 16))


def test_capitals_are_the_same_text(teacher: SiglipTeacher) -> None:
    lower, upper = teacher.encode([Request(text="a cat"), Request(text="A CAT")]).text
    assert torch.equal(lower, upper)


def test_gemma_s_tokenizer_alone_would_keep_capitals(siglip2_folder: str) -> None:
    tokenizer = parts(siglip2_folder)[1].tokenizer
    assert tokenizer("A cat")["input_ids"] != tokenizer("a cat")["input_ids"]


def test_padding_is_part_of_the_text(teacher: SiglipTeacher) -> None:
    """The last position is pooled: padded less, a text is another one."""
    tokens = teacher.tokenise(["a cat"])
    assert list(tokens) == ["input_ids"]
    short = {"input_ids": tokens["input_ids"][:, :8]}
    difference = teacher.text_features(short) - teacher.text_features(tokens)
    assert difference.abs().max() > 1e-3


def test_a_mask_of_the_tokenizer_is_not_used(
    siglip2_folder: str, changed: Callable[..., str], samples: list[Request]
) -> None:
    names = ["input_ids", "attention_mask"]
    path = changed(
        siglip2_folder,
        settings={"tokenizer_config.json": lambda c: c.update(model_input_names=names)},
    )
    found = SiglipTeacher(name="siglip", path=path).encode(samples).text
    expected = SiglipTeacher(name="siglip", path=siglip2_folder).encode(samples).text
    assert torch.equal(found, expected)


def test_width_modalities_and_temperature(
    teacher: SiglipTeacher, folder: str, changed: Callable[..., str]
) -> None:
    assert (teacher.dim, teacher.modalities) == (16, ("image", "text"))
    path = changed(folder, weights=lambda t: t["logit_scale"].fill_(math.log(110)))
    assert SiglipTeacher(name="siglip", path=path).temperature == pytest.approx(1 / 110)


def test_naflex_is_refused(siglip_folder: str, changed: Callable[..., str]) -> None:
    path = changed(
        siglip_folder, settings={"config.json": lambda c: c.update(model_type="siglip2")}
    )
    with pytest.raises(TeacherError, match=r"is a NaFlex SigLIP 2, .*take a fixed resolution"):
        SiglipTeacher(name="siglip", path=path)


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (3, 1), (2, 50)])
def test_tiny_pictures(teacher: SiglipTeacher, size: tuple[int, int]) -> None:
    assert teacher.pixels(Image.new("RGB", size, "red")).shape == (3, 32, 32)
