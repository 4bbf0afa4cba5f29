from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from keynet.training.module import KeyModule
from keynet.training.stems import EncoderStem, encoder_stems

Make = Callable[..., KeyModule]


def test_only_encoders_with_a_frozen_part_have_a_stem(make_module: Make) -> None:
    model: Any = make_module().model
    stems = encoder_stems(model, "cpu")
    assert list(stems) == ["image"]
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(stems["image"](images), model.image_encoder.stem(images))


def test_the_fingerprint_is_of_the_frozen_weights_alone(make_module: Make) -> None:
    one, other = (make_module(seed=seed).model.image_encoder for seed in (1, 1))
    with torch.no_grad():
        other.conv.weight.add_(1)
    stem = EncoderStem(other, "cpu")
    assert EncoderStem(one, "cpu").fingerprint == stem.fingerprint
    with torch.no_grad():
        other.frozen.weight[0, 0, 0, 0] += 1  # as a checkpoint that comes later
    assert EncoderStem(one, "cpu").fingerprint != stem.fingerprint
    assert len(stem.fingerprint) == 16
