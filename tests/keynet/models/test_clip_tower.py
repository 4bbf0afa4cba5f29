from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPVisionConfig

from keynet.models.clip_tower import ClipVisionTower
from keynet.models.lora import merged

SIZE, WIDTH = 32, 16
TOWER = {
    "hidden_size": WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A whole CLIP as published for transformers."""
    text = {**TOWER, "vocab_size": 40, "max_position_embeddings": 8}
    vision = {**TOWER, "image_size": SIZE, "patch_size": 8}
    torch.manual_seed(0)
    network = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=12))
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    path = str(tmp_path_factory.mktemp("clip"))
    network.save_pretrained(path)
    size = {"height": SIZE, "width": SIZE}
    CLIPImageProcessor(
        size={"shortest_edge": SIZE}, crop_size=size, image_mean=MEAN, image_std=STD
    ).save_pretrained(path)
    return path


@pytest.fixture
def changed(folder: str, tmp_path: Path) -> Callable[..., str]:
    """Copy the folder without a weight or a file."""

    def change(without: str) -> str:
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        if (copy / without).exists():
            (copy / without).unlink()
            return str(copy)
        weights = load_file(copy / "model.safetensors")
        del weights[without]
        save_file(weights, copy / "model.safetensors", {"format": "pt"})
        return str(copy)

    return change


def pictures(count: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)


def tower(path: str, **options: Any) -> ClipVisionTower:
    return ClipVisionTower(**{"path": path, "image_size": SIZE, **options})


@torch.no_grad()
def test_it_is_the_pooled_feature_of_the_whole_clip(folder: str) -> None:
    theirs: Any = CLIPModel.from_pretrained(folder).eval()
    processor = CLIPImageProcessor.from_pretrained(folder)
    pixels = processor(list(pictures()), return_tensors="pt")["pixel_values"]
    model = tower(folder).eval()
    assert model.num_features == WIDTH
    expected = theirs.vision_model(pixel_values=pixels).pooler_output
    assert torch.allclose(model(pictures()), expected, atol=1e-5)


def test_a_frozen_tower_stays_in_evaluation_mode_and_gives_no_gradient(folder: str) -> None:
    model = tower(folder).train()
    assert model.frozen is True and model.training and not model.network.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    stem = model.stem(pictures())
    assert stem.dtype == torch.bfloat16 and not stem.requires_grad
    assert torch.equal(model(pictures()), stem.float())  # in training
    assert torch.equal(model(stem), stem.float())
    exact = model.eval()(pictures())
    assert exact.dtype == torch.float32
    assert (stem.float() - exact).abs().max() < 0.05 * exact.abs().max()
    assert all(value.ndim for value in model.state_dict().values())


# TorchScript is what is exported; torch deprecates it.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
# A trace reads all properties of a module, and transformers renames this one.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_lora_trains_adapters_alone_merges_and_traces(folder: str) -> None:
    model = tower(folder, lora_rank=2)
    assert model.frozen is False
    adapters = [p for name, p in model.named_parameters() if "lora_" in name]
    assert len(adapters) == 2 * 6 * 2  # A and B beside six layers of two blocks
    with torch.no_grad():  # B starts as zero, and A gets nothing through it
        for adapter in adapters:
            adapter.add_(torch.randn_like(adapter) * 0.1)
    model.train()(pictures()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == ("lora_" in name), name
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in adapters)
    model.eval().requires_grad_(False)
    expected = model(pictures())
    merged(model)
    assert torch.allclose(model(pictures()), expected, atol=1e-5)
    traced = torch.jit.trace(model, pictures(2))
    assert torch.equal(traced(pictures(5, seed=1)), model(pictures(5, seed=1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "no/clip"}, "the weights of no/clip cannot be read"),
        ({"image_size": 224}, r"image_size=224 of a checkpoint for 32 x 32.*data.image_size=32"),
        ({"frozen": False, "lora_rank": 2}, "lora_rank=2 with frozen=false"),
    ],
)
def test_what_does_not_fit_is_refused(
    folder: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=message):
        tower(**{"path": folder, **options})


def test_a_checkpoint_that_lacks_a_weight_is_refused(changed: Callable[..., str]) -> None:
    weight = "vision_model.post_layernorm.weight"
    with pytest.raises(ValueError, match=r"lacks .*post_layernorm.weight, which would stay random"):
        tower(changed(weight))


def test_a_checkpoint_without_its_normalisation_is_refused(changed: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match=r"put its preprocessor_config.json beside the weights"):
        tower(changed("preprocessor_config.json"))


def test_weights_of_another_width_are_refused(changed: Callable[..., str]) -> None:
    path = changed("logit_scale")
    CLIPVisionConfig(**TOWER, image_size=SIZE, patch_size=4).save_pretrained(path)
    with pytest.raises(ValueError, match=r"its config.json says"):
        tower(path)
