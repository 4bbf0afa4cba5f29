"""Whatever is plugged into a key model leaves through the one exporter, with exact keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from aligners.affine import AffineAlign
from aligners.clip_adapter import ClipAdapter
from aligners.concatenation import Concatenation
from aligners.fusion import ResidualMLP, WeightedSum
from aligners.low_rank_adapter import LowRankAdapter
from aligners.mm_align import MMAlign
from aligners.qformer import QFormerFusion
from keynet.export.exporter import export_key_model
from keynet.export.loader import load_key_model
from keynet.models.hash_head import HashHead
from keynet.models.key_model import KeyModel
from keynet.models.lora import add_lora
from keynet.models.modality_hash_head import ModalityHashHead
from keynet.models.text_tower import TextTower
from keynet.preprocess import Preprocessor
from keynet.types import Request

D, C, W = 16, 12, 8
WIDTHS = {"image": C, "text": W}
LINEAR = {"aligner": lambda: MMAlign(input_dims=WIDTHS, key_dim=D)}


class Patches(nn.Module):
    """Mean and places of a map [B, 1 + 16, C]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, C, 4, stride=4)
        self.projection = nn.Linear(C, C)

    def forward(self, images: Tensor) -> Tensor:
        places = self.projection(self.conv(images.float() / 255).flatten(2).transpose(1, 2))
        return torch.cat([places.mean(1, keepdim=True), places], dim=1)


def qformer() -> QFormerFusion:
    return QFormerFusion(key_dim=D, token_dim=C, width=16, depth=2, heads=2, num_queries=3)


def with_lora() -> Patches:
    encoder = Patches()
    add_lora(encoder, 2, ["projection"])
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    return encoder


RECIPES: dict[str, dict[str, Any]] = {
    "mm_align": {"fusion": lambda: WeightedSum(key_dim=D)},
    "hidden layer": {"aligner": lambda: MMAlign(input_dims=WIDTHS, key_dim=D, hidden_dim=20)},
    "learned alpha": {"fusion": lambda: ResidualMLP(key_dim=D, hidden_dim=8, alpha="learned")},
    "clip_adapter": {"image_adapter": lambda: ClipAdapter(dim=C)},
    "low_rank": {"image_adapter": lambda: LowRankAdapter(dim=C, rank=2)},
    "qformer": {"fusion": qformer},
    "both": {"image_adapter": lambda: ClipAdapter(dim=C), "fusion": qformer},
    "lora": {"image_encoder": with_lora},
    "affine": {
        "aligner": lambda: AffineAlign(input_dims=WIDTHS, key_dim=W),
        "fusion": lambda: ResidualMLP(key_dim=W, hidden_dim=8),
        "hash_head": lambda: HashHead(key_dim=W, bits=64),
    },
    "joint_hash": {
        "fusion": lambda: Concatenation(key_dim=2 * D),
        "hash_head": lambda: ModalityHashHead(key_dim=2 * D, bits=128),
    },
}


def made(recipe: str, vocab_size: int) -> KeyModel:
    torch.manual_seed(3)
    parts: dict[str, Any] = {
        "image_encoder": Patches,
        "text_encoder": lambda: TextTower(
            vocab_size=vocab_size, width=W, depth=1, heads=2, max_tokens=32
        ),
        "image_adapter": nn.Identity,
        "fusion": lambda: ResidualMLP(key_dim=D, hidden_dim=8),
        "hash_head": lambda: HashHead(key_dim=D, bits=64),
    }
    chosen = parts | LINEAR | RECIPES[recipe]
    model = KeyModel(**{name: make() for name, make in chosen.items()})
    for name, buffer in model.hash_head.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.1)
    return model.eval()


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_export_gives_the_models_keys_at_every_batch_size(
    recipe: str,
    tmp_path: Path,
    preprocessor: Preprocessor,
    golden: list[Request],
    requests: list[Request],
) -> None:
    model = made(recipe, len(preprocessor._tokenizer.get_vocab()))
    # Each format is compared with the model before the export is published.
    formats = ["pt2", "onnx"] if recipe in ("both", "joint_hash", "lora") else []
    export_key_model(model, preprocessor, tmp_path / "export", "recipe", 1, golden, formats=formats)
    loaded = load_key_model(tmp_path / "export")
    with torch.no_grad():
        wanted = model(*preprocessor(requests)[:4])
    sure = (wanted.logits.abs() > 1e-4).numpy()
    for size in (1, 7, 64):
        vectors, codes, alignment = loaded.encode_arrays(requests, batch_size=size)
        assert np.abs(vectors - wanted.key.numpy()).max() < 1e-5
        bits = np.unpackbits(codes, axis=1).astype(bool)
        assert ((bits == (wanted.logits >= 0).numpy()) | ~sure).all()
        assert np.allclose(alignment, wanted.alignment.numpy(), atol=1e-5, equal_nan=True)
    by_modality = recipe == "joint_hash"
    assert loaded.code_lengths == ((128,) if by_modality else (64,))
    assert (loaded.manifest.code_blocks is not None) == by_modality
    image, text = loaded.encode_modalities(requests)
    assert np.abs(image - wanted.image.numpy()).max() < 1e-5
    assert np.abs(text - wanted.text.numpy()).max() < 1e-5
    assert not [name for name, _ in model.named_modules() if "merged" in name]  # it was copied


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_modality_alone_has_one_key_whatever_lies_under_the_others_mask(recipe: str) -> None:
    model = made(recipe, 50)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=generator)
    tokens = torch.randint(50, (4, 8), generator=generator)
    image_mask = torch.tensor([True, True, False, False])
    token_mask = (~image_mask)[:, None].expand(4, 8)
    with torch.no_grad():
        one = model(images, image_mask, tokens, token_mask)
        changed_images = torch.where(image_mask[:, None, None, None], images, 255 - images)
        changed_tokens = torch.where(token_mask, tokens, 7)
        other = model(changed_images, image_mask, changed_tokens, token_mask)
        order = torch.tensor([2, 0, 3, 1])
        moved = model(images[order], image_mask[order], tokens[order], token_mask[order])
    torch.testing.assert_close(other.key, one.key)
    torch.testing.assert_close(other.logits, one.logits)
    torch.testing.assert_close(moved.key, one.key[order])
    assert one.alignment.isnan().all()
