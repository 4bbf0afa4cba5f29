from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoTokenizer,
    LlamaTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from keynet.models.llava_tower import LlavaTextTower, llava_tokenizer
from keynet.models.lora import merged
from keynet.preprocess import Preprocessor

WIDTH, POSITIONS = 16, 32
TOWER = {
    "hidden_size": WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
WORDS = ["<unk>", "<s>", "</s>", "▁", *"abcdefghijklmnopqrstuvwxyz?", "<image>"]
TEXTS = ["what is it", "tell me of the sea?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A whole LLaVA, in the names of the weights as they are published."""
    config = LlavaConfig(
        vision_config={
            **TOWER, "model_type": "clip_vision_model", "image_size": 32, "patch_size": 8
        },
        text_config={
            **TOWER, "model_type": "llama", "vocab_size": len(WORDS), "num_key_value_heads": 2,
            "max_position_embeddings": POSITIONS, "pad_token_id": None,
        },
        image_token_id=WORDS.index("<image>"),
    )  # fmt: skip
    torch.manual_seed(0)
    network = LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    path = str(tmp_path_factory.mktemp("llava"))
    network.save_pretrained(path)
    tokenizer = LlamaTokenizer(
        vocab={word: n for n, word in enumerate(WORDS)}, merges=[], add_bos_token=True,
        extra_special_tokens={"image_token": "<image>"}, padding_side="left",
    )  # fmt: skip
    tokenizer.save_pretrained(path)
    return path


def without(folder: str, copy: Path, name: str) -> str:
    """Copy the folder without a weight."""
    shutil.copytree(folder, copy)
    weights = load_file(copy / "model.safetensors")
    del weights[name]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return str(copy)


def tower(path: str, **options: Any) -> LlavaTextTower:
    return LlavaTextTower(**{"path": path, "max_tokens": 24, **options})


def texts(count: int = 3, length: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens and mask of texts of several lengths, the last without a text."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, 30, (count, length), generator=generator)
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    lengths[-1] = 0
    mask = torch.arange(length) < lengths
    return tokens.masked_fill(~mask, 0), mask


@torch.no_grad()
def test_it_is_the_mean_of_the_language_models_last_states(folder: str) -> None:
    assert "language_model.model.norm.weight" in load_file(Path(folder) / "model.safetensors")
    theirs: Any = LlavaForConditionalGeneration.from_pretrained(folder).eval()
    model = tower(folder).eval()
    assert model.num_features == WIDTH
    tokens, mask = texts()
    found = model(tokens, mask)
    for row in range(2):
        alone = theirs.model(input_ids=tokens[row : row + 1, : int(mask[row].sum())])
        assert torch.allclose(found[row], alone.last_hidden_state[0].mean(0), atol=1e-5)
    assert torch.equal(found[2], torch.zeros(WIDTH))
    covered = torch.where(mask, tokens, 7)
    assert torch.equal(model(covered, mask), found)


def test_a_frozen_tower_stays_in_evaluation_mode_and_gives_no_gradient(folder: str) -> None:
    model, inputs = tower(folder).train(), texts()
    assert model.frozen is True and model.training and not model.network.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    stem = model.stem(*inputs)
    assert stem.dtype == torch.bfloat16 and not stem.requires_grad
    assert torch.equal(model(*inputs), stem.float())  # in training
    assert torch.equal(model(stem, torch.ones(3, 1, dtype=torch.bool)), stem.float())
    exact = model.eval()(*inputs)
    assert exact.dtype == torch.float32
    assert (stem.float() - exact).abs().max() < 0.05 * exact.abs().max()
    names = list(model.state_dict())
    assert not [name for name in names if "vision" in name or "lm_head" in name]


# TorchScript is what is exported; torch deprecates it.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
# A trace reads all properties of a module, and transformers renames this one.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_lora_trains_adapters_alone_merges_and_traces(folder: str) -> None:
    model = tower(folder, lora_rank=2)
    assert model.frozen is False
    adapters = [p for name, p in model.named_parameters() if "lora_" in name]
    assert len(adapters) == 2 * 7 * 2  # A and B beside seven layers of two blocks
    with torch.no_grad():  # B starts as zero, and A gets nothing through it
        for adapter in adapters:
            adapter.add_(torch.randn_like(adapter) * 0.1)
    model.train()(*texts()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == ("lora_" in name), name
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in adapters)
    model.eval().requires_grad_(False)
    expected = model(*texts())
    merged(model)
    assert torch.allclose(model(*texts()), expected, atol=1e-5)
    traced = torch.jit.trace(model, texts(2, 8))
    for count, length in ((5, 16), (4, 24)):
        inputs = texts(count, length, seed=count)
        assert torch.equal(traced(*inputs), model(*inputs))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "no/llava"}, "the weights of no/llava cannot be read"),
        ({"max_tokens": 40}, r"max_tokens=40 of a checkpoint for 32.*: 32"),
        ({"frozen": False, "lora_rank": 2}, "lora_rank=2 with frozen=false"),
    ],
)
def test_what_does_not_fit_is_refused(
    folder: str, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=message):
        tower(**{"path": folder, **options})


def test_a_language_model_that_lacks_a_weight_is_refused(folder: str, tmp_path: Path) -> None:
    path = without(folder, tmp_path / "copy", "language_model.model.norm.weight")
    with pytest.raises(ValueError, match=r"lacks model.language_model.norm.weight"):
        tower(path)


def test_what_is_dropped_may_be_missing(folder: str, tmp_path: Path) -> None:
    path = without(folder, tmp_path / "copy", "multi_modal_projector.linear_1.weight")
    assert tower(path).num_features == WIDTH


def test_the_tokenizer_gives_the_checkpoints_ids(folder: str) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    tokenizer = llava_tokenizer(folder)
    assert tokenizer.truncation is None and tokenizer.padding is None
    preprocessor = Preprocessor(32, tokenizer, 24)
    for text in TEXTS:
        ids = preprocessor.tokenise(text)
        assert ids == theirs(text).input_ids
        assert ids[0] == WORDS.index("<s>")
    assert WORDS.index("<image>") not in preprocessor.tokenise("an <image>")


def test_a_folder_without_a_tokenizer_is_refused(folder: str, tmp_path: Path) -> None:
    shutil.copy(Path(folder) / "config.json", tmp_path)
    with pytest.raises(ValueError, match="tokenizer"):
        llava_tokenizer(str(tmp_path))
