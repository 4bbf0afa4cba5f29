"""A key model of 6,000 parameters with a trained image part and a BatchNorm in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aligners.fusion import ResidualMLP
from aligners.mm_align import MMAlign
from data.datamodule import RequestDataModule
from keynet.models.hash_head import HashHead
from keynet.models.key_model import KeyModel
from keynet.models.text_tower import TextTower
from keynet.training import losses
from keynet.training.module import KeyModule


class TinyImages(nn.Module):
    """Two convolutions; the first is frozen, and what it makes may be stored."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = 12
        self.frozen = nn.Conv2d(3, 8, 4, stride=4).requires_grad_(False)
        self.conv = nn.Conv2d(8, 12, 2, stride=2)
        self.norm = nn.BatchNorm2d(12)

    def stem(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.frozen(images.float() / 255).relu().to(torch.bfloat16)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images) if images.dtype == torch.uint8 else images
        return self.norm(self.conv(x.float())).mean((2, 3))


def tiny_module(seed: int = 0, **changes: Any) -> KeyModule:
    torch.manual_seed(seed)
    model = KeyModel(
        image_encoder=TinyImages(),
        text_encoder=TextTower(vocab_size=300, width=8, depth=1, heads=2, max_tokens=32),
        image_adapter=nn.Identity(),
        aligner=MMAlign(input_dims={"image": 12, "text": 8}, key_dim=8),
        fusion=ResidualMLP(key_dim=8, hidden_dim=16),
        hash_head=HashHead(key_dim=8, bits=64),
    )
    settings: dict[str, Any] = {
        "losses": {
            "group_contrast": {"weight": 1.0, "loss": losses.Contrast(vector="key", over="group")},
            "code_affinity": {"weight": 0.1, "loss": losses.CodeAffinity()},
        },
        "learning_rate": 1e-2, "image_learning_rate": 1e-3,
        "weight_decay": 0.05, "warmup_share": 0.25,
    }  # fmt: skip
    return KeyModule(model=model, **(settings | changes))


@pytest.fixture(scope="session")
def make_module() -> Callable[..., KeyModule]:
    return tiny_module


@pytest.fixture
def make_data(toy_source: Any) -> Callable[..., RequestDataModule]:
    def make(seed: int = 0, store_stems: bool = True) -> RequestDataModule:
        return RequestDataModule(
            source=toy_source, image_size=16, max_tokens=32, long_text="error", vocab_size=300,
            batch_size=16, batches_per_epoch=2, seed=seed, num_workers=0, store_stems=store_stems,
        )  # fmt: skip

    return make
