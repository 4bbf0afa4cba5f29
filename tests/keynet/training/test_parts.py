from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from omegaconf import OmegaConf

from keynet.training.module import KeyModule
from keynet.training.parts import train_only

Make = Callable[..., KeyModule]
PARTS = "image_encoder, text_encoder, image_adapter, aligner, fusion, hash_head"


def trained(model: Any) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_what_was_frozen_in_a_part_stays_frozen(make_module: Make) -> None:
    model: Any = make_module().model
    kept = train_only(model, OmegaConf.create(["image_encoder", "aligner.projections.text"]))
    assert kept == ["image_encoder", "aligner.projections.text"]
    encoder = {f"image_encoder.{n}" for n, _ in model.image_encoder.named_parameters()}
    frozen = {n for n in encoder if n.startswith("image_encoder.frozen")}
    text = {f"aligner.projections.text.{n}" for n in ("weight", "bias")}
    assert frozen and trained(model) == encoder - frozen | text


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["image_adpter"], f"names 'image_adpter', which .* has not; it has {PARTS}"),
        (["aligner.projections.text.weight"], "names 'aligner.projections.text.weight', which"),
        ([""], "names '', which"),
        ([3], "names 3, which"),
        ([], rf"trained=\[\]: expected a list of parts.*it has {PARTS}"),
        ("", "trained='': expected a list"),
        ("aligner", "trained='aligner': expected a list"),
        (3, "trained=3: expected a list"),
        (["aligner", "image_adapter"], "names 'image_adapter', in .*; give adapter=low_rank"),
        (["image_encoder.frozen"], "names 'image_encoder.frozen', in which nothing"),
    ],
)
def test_parts_that_cannot_be_trained_are_one_line(
    make_module: Make, parts: Any, message: str
) -> None:
    model = make_module().model
    before = trained(model)
    with pytest.raises(ValueError, match=message) as error:
        train_only(model, parts)
    assert "\n" not in str(error.value) and trained(model) == before


def test_a_frozen_encoder_stays_frozen(make_module: Make) -> None:
    model: Any = make_module().model
    model.text_encoder.requires_grad_(False)
    with pytest.raises(ValueError, match="names 'text_encoder', in which nothing can be trained"):
        train_only(model, ["text_encoder"])
