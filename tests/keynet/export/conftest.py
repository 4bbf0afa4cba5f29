"""A tiny key model that meets the contract, a byte-level tokenizer, and one export of both."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn

from keynet.export.exporter import export_key_model
from keynet.preprocess import Preprocessor
from keynet.types import KeyOutput, Request


class TinyKeyModel(nn.Module):
    """Mean colours and mean token vectors, mixed into a key; padding does not matter."""

    def __init__(self, vocab_size: int, key_dim: int = 16, num_bits: int = 64) -> None:
        super().__init__()
        self.key_dim, self.num_bits = key_dim, num_bits
        self.table = nn.Embedding(vocab_size, key_dim)
        self.colour = nn.Conv2d(3, key_dim, 4, stride=4)
        self.mix = nn.Linear(2 * key_dim, key_dim)
        self.hash = nn.Linear(key_dim, num_bits)

    def forward(
        self, images: Tensor, image_mask: Tensor, tokens: Tensor, token_mask: Tensor
    ) -> KeyOutput:
        text_mask = token_mask.any(1)
        weight = token_mask.unsqueeze(-1).float()
        text = (self.table(tokens) * weight).sum(1) / weight.sum(1).clamp_min(1)
        image = self.colour(images.float() / 255).amax((2, 3))
        text = nn.functional.normalize(text, dim=1) * text_mask.unsqueeze(1)
        image = nn.functional.normalize(image, dim=1) * image_mask.unsqueeze(1)
        key = nn.functional.normalize(self.mix(torch.cat([image, text], 1)), dim=1)
        cosine = (image * text).sum(1)
        alignment = torch.where(image_mask & text_mask, cosine, torch.full_like(cosine, torch.nan))
        return KeyOutput(key, image, text, self.hash(key), alignment)

    def hash_matrix(self) -> tuple[Tensor, Tensor]:
        return self.hash.weight, self.hash.bias


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["what is this", "is it red", "is it blue"] * 4, trainer)
    return tokenizer


def png(colour: tuple[int, ...], size: tuple[int, int] = (9, 6)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB" if len(colour) == 3 else "RGBA", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


GOLDEN = [
    Request(image=png((200, 10, 10)), text="what is this"),
    Request(image=np.full((5, 5, 3), 90, dtype=np.uint8)),
    Request(text="is it not red?"),
]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return train_tokenizer()


@pytest.fixture(scope="session")
def preprocessor(tokenizer: Tokenizer) -> Preprocessor:
    return Preprocessor(16, tokenizer, 32)


@pytest.fixture(scope="session")
def model(tokenizer: Tokenizer) -> TinyKeyModel:
    torch.manual_seed(1)
    return TinyKeyModel(tokenizer.get_vocab_size())


@pytest.fixture(scope="session")
def golden() -> list[Request]:
    return GOLDEN


@pytest.fixture(scope="session")
def exported(
    tmp_path_factory: pytest.TempPathFactory,
    model: TinyKeyModel,
    preprocessor: Preprocessor,
    golden: list[Request],
) -> Path:
    """An export that tests read and do not change; copy it to change it."""
    folder = tmp_path_factory.mktemp("run") / "export"
    export_key_model(model, preprocessor, folder, "tiny", 1, golden, attribution=["Art: nobody"])
    return folder


@pytest.fixture
def requests() -> list[Request]:
    generator = np.random.default_rng(7)
    texts = ["what is this", "is it red", "ist es rot?", "is it not blue, or is it", "これは何"]
    made = []
    for i in range(70):
        image = generator.integers(0, 256, (7 + i % 5, 9, 3), dtype=np.uint8)
        text = texts[i % 5] if i % 3 else None
        made.append(Request(image=image if i % 4 or text is None else None, text=text))
    return made
