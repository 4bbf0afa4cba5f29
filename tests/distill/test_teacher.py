"""The frozen base alone, around networks of one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from distill.teacher import CHUNK, TEMPERATURE, FrozenTeacher, Teacher, TeacherError
from keynet.types import Request


class Sums(FrozenTeacher):
    """A linear map of the mean colour, and of the text's length."""

    def __init__(self, weight: float = 1.0, preprocessing: Mapping[str, Any] = {"size": 4}) -> None:
        network = nn.Linear(3, 2)
        nn.init.constant_(network.weight, weight)
        nn.init.zeros_(network.bias)
        self.chunks: list[int] = []
        super().__init__(
            name="sums",
            module=network,
            modalities=("image", "text"),
            dim=2,
            preprocessing=preprocessing,
        )

    def pixels(self, picture: Image.Image) -> Tensor:
        colour = torch.tensor(np.asarray(picture), dtype=torch.float32).mean((0, 1))
        return colour.view(3, 1, 1)

    def image_features(self, pixels: Tensor) -> Tensor:
        self.chunks.append(len(pixels))
        features: Tensor = self.module(pixels.flatten(1))
        return features

    def tokenise(self, texts: list[str]) -> dict[str, Tensor]:
        return {"lengths": torch.tensor([[len(text)] * 3 for text in texts])}

    def text_features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        features: Tensor = self.module(inputs["lengths"].to(self.module.weight.dtype))
        return features


def flat(value: int) -> np.ndarray:
    return np.full((2, 2, 3), value, np.uint8)


def test_rows_stand_where_the_requests_do_and_absent_ones_are_zeros() -> None:
    requests = [Request(image=flat(3)), Request(text="abcd"), Request(image=flat(2), text="ab")]
    image, text = Sums().encode(requests)
    assert torch.equal(image, torch.tensor([[9.0, 9], [0, 0], [6, 6]]))
    assert torch.equal(text, torch.tensor([[0.0, 0], [12, 12], [6, 6]]))
    assert image.dtype == text.dtype == torch.float32


def test_more_requests_than_a_chunk_holds() -> None:
    teacher = Sums()
    found = teacher.encode([Request(image=flat(n % 250)) for n in range(2 * CHUNK + 1)])
    assert teacher.chunks == [CHUNK, CHUNK, 1]
    expected = torch.tensor([3.0 * (n % 250) for n in range(2 * CHUNK + 1)])
    assert torch.equal(found.image[:, 0], expected)


def test_no_requests_are_no_rows() -> None:
    image, text = Sums().encode([])
    assert image.shape == text.shape == (0, 2)


def test_it_is_a_teacher_frozen_and_in_evaluation_mode() -> None:
    teacher: Teacher = Sums()
    assert (teacher.dim, teacher.temperature) == (2, TEMPERATURE)
    assert not teacher.module.training  # type: ignore[attr-defined]
    assert not any(p.requires_grad for p in teacher.module.parameters())  # type: ignore[attr-defined]
    assert not teacher.encode([Request(text="a")]).text.requires_grad
    assert not isinstance(teacher, nn.Module)  # so it stays out of checkpoints


def test_fingerprint_is_of_weights_and_preprocessing() -> None:
    first = Sums().fingerprint
    assert first == Sums().fingerprint
    assert len(first) == 16 and int(first, 16) >= 0
    others = {Sums(weight=1.5).fingerprint, Sums(preprocessing={"size": 5}).fingerprint}
    assert len({first, *others}) == 3


def test_another_class_has_another_fingerprint() -> None:
    class Other(Sums):
        pass

    assert Other().fingerprint != Sums().fingerprint


def test_casting_keeps_the_fingerprint() -> None:
    teacher = Sums(weight=1 / 3)
    teacher.to("cpu", torch.bfloat16)
    assert teacher.module.weight.dtype == torch.bfloat16
    assert teacher.fingerprint == Sums(weight=1 / 3).fingerprint
    text = teacher.encode([Request(text="abc")]).text
    assert text.dtype == torch.float32
    torch.testing.assert_close(text, torch.full((1, 2), 3.0), rtol=0.01, atol=0)


def test_a_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(TeacherError, match="teacher sums: weight weight is not finite"):
        Sums(weight=float("nan"))


def test_embeddings_that_are_not_finite_or_of_another_width_are_refused() -> None:
    with pytest.raises(TeacherError, match="an image embedding is not finite"):
        Sums(weight=3e38).encode([Request(image=flat(200))])
    teacher = Sums()
    teacher.dim = 5
    with pytest.raises(TeacherError, match=r"text embeddings are \(1, 2\), expected \(1, 5\)"):
        teacher.encode([Request(text="a")])
