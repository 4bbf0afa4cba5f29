from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from keynet.models.lora import merged
from keynet.models.open_clip_towers import (
    OpenClipImageTower,
    OpenClipTextTower,
    load_open_clip,
    open_clip_tokenizer,
)

SIZE, CONTEXT, WIDTH = 32, 24, 12
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
TEXTS = ["a cat", "What's that small red house by the sea?", "Zwölf Äpfel, 3 日本"]
COCA = {"context_length": CONTEXT, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
# Of each kind of text encoder that open_clip has of its own: one model's settings, and whether a
# text can be cut to its length.
KINDS: dict[str, tuple[dict[str, Any], bool]] = {
    "clip": ({}, True),
    "custom": ({"model": {"custom_text": True}, "text": {"proj_bias": True}}, True),
    "eos": ({"text": {"pool_type": "eos", "eos_id": 49407}}, True),
    "clipa": ({"text": {"no_causal_mask": True, "pool_type": "last"}}, False),
    "mobileclip": ({"model": {"custom_text": True}, "text": {"no_causal_mask": True}}, False),
    "coca": (
        {
            "model": {"custom_text": True, "multimodal_cfg": {**COCA, "attn_pooler_heads": 2}},
            "text": {"embed_cls": True, "output_tokens": True},
            "vision": {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
        },
        False,
    ),
}
Make = Callable[..., str]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Save a random model as its makers publish them, once; return its name for open_clip."""
    saved: dict[str, str] = {}

    def once(**settings: Any) -> str:
        key = str(settings)
        if key not in saved:
            saved[key] = save(**settings)
        return saved[key]

    def save(
        vision: dict[str, Any] | None = None,
        text: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        without: str | None = None,
    ) -> str:
        tower = {"image_size": SIZE, "layers": 2, "width": 16, "patch_size": 8, "head_width": 8}
        words = {"context_length": CONTEXT, "width": 16, "heads": 2, "layers": 2}
        config = {
            "embed_dim": WIDTH,
            "vision_cfg": {**tower, **(vision or {})},
            "text_cfg": {**words, **(text or {})},
            **(model or {}),
        }
        kind = open_clip.CustomTextCLIP if config.get("custom_text") else open_clip.CLIP
        kind = open_clip.CoCa if "multimodal_cfg" in config else kind
        torch.manual_seed(0)
        network = kind(**{key: value for key, value in config.items() if key != "custom_text"})
        with torch.no_grad():  # no zero bias hides a mistake
            for weight in network.parameters():
                weight.add_(torch.randn_like(weight) * 0.1)
        folder = tmp_path_factory.mktemp("model")
        published = {"model_cfg": config, "preprocess_cfg": {"mean": MEAN, "std": STD}}
        (folder / "open_clip_config.json").write_text(json.dumps(published))
        weights = {key: value for key, value in network.state_dict().items() if key != without}
        save_file(weights, folder / "open_clip_model.safetensors")
        return f"local-dir:{folder}"

    return once


def reference(model: str) -> Any:
    return open_clip.create_model(model, require_pretrained=True).eval()


def pictures(count: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)


def pixels(images: Tensor) -> Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (images / 255 - mean) / std


@cache
def clip_tokenizer() -> Tokenizer:
    return open_clip_tokenizer("ViT-B-32")


def tokenised(
    texts: list[str], length: int = CONTEXT, tokenizer: Tokenizer | None = None
) -> tuple[Tensor, Tensor]:
    """Right-padded by zeros, as our preprocessor does."""
    tokenizer = tokenizer or clip_tokenizer()
    tokens = torch.zeros(len(texts), length, dtype=torch.int64)
    mask = torch.zeros(len(texts), length, dtype=torch.bool)
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text).ids
        tokens[row, : len(ids)], mask[row, : len(ids)] = torch.tensor(ids), True
    return tokens, mask


def image_tower(model: str, **options: Any) -> OpenClipImageTower:
    return OpenClipImageTower(**{"model": model, "image_size": SIZE, "tokens": False, **options})


def text_tower(model: str, **options: Any) -> OpenClipTextTower:
    return OpenClipTextTower(**{"model": model, "max_tokens": CONTEXT, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_both_towers_give_what_open_clip_encodes(make: Make, kind: str) -> None:
    settings, causal = KINDS[kind]
    model = make(**settings)
    theirs, images, texts = reference(model), image_tower(model).eval(), text_tower(model).eval()
    assert (images.num_features, texts.num_features) == (WIDTH, WIDTH)
    assert texts.causal == causal
    with torch.no_grad():
        expected = theirs.encode_image(pixels(pictures()), normalize=False)
        assert torch.allclose(images(pictures()), expected, atol=1e-5)
        ids = open_clip.get_tokenizer(model)(TEXTS)
        expected = theirs.encode_text(ids, normalize=False)
        longest = int((ids != 0).sum(1).max())
        for length in (longest, longest + 3, CONTEXT):
            tokens, mask = tokenised(TEXTS, length)
            assert torch.allclose(texts(tokens, mask), expected, atol=1e-5)
            covered = torch.where(mask, tokens, 49407)
            assert torch.equal(texts(covered, mask), texts(tokens, mask))
        # A text beside longer ones, and rows without a text.
        tokens, mask = tokenised(TEXTS)
        assert torch.allclose(texts(tokens[:1, :8], mask[:1, :8]), expected[:1], atol=1e-5)
        assert texts(tokens, torch.zeros_like(mask)).isfinite().all()


@pytest.mark.parametrize("late_norm", [False, True])
def test_patches_are_normed_and_projected_as_the_pooled_feature(
    make: Make, late_norm: bool
) -> None:
    model = make(vision={"final_ln_after_pool": late_norm})
    theirs = reference(model).visual
    with torch.no_grad():
        rows = image_tower(model, tokens=True).eval()(pictures())
        inner = theirs.forward_intermediates(
            pixels(pictures()), normalize_intermediates=True, output_fmt="NLC"
        )
        assert rows.shape == (3, 1 + (SIZE // 8) ** 2, WIDTH)
        assert torch.allclose(rows[:, 0], theirs(pixels(pictures())), atol=1e-5)
        assert torch.allclose(
            rows[:, 1:], inner["image_intermediates"][-1] @ theirs.proj, atol=1e-5
        )


def test_a_pooled_mean_is_the_mean_of_the_patches(make: Make) -> None:
    rows = image_tower(make(vision={"pool_type": "avg"}), tokens=True).eval()(pictures())
    assert torch.allclose(rows[:, 0], rows[:, 1:].mean(1), atol=1e-5)


def test_frozen_towers_stay_in_evaluation_mode_and_give_no_gradient(make: Make) -> None:
    model = make(vision={"patch_dropout": 0.5})
    tokens, mask = tokenised(TEXTS)
    for tower, inputs in (
        (image_tower(model, tokens=True), (pictures(),)),
        (text_tower(model), (tokens, mask)),
    ):
        tower.train()
        assert tower.frozen is True and tower.training and not tower.network.training
        assert not any(parameter.requires_grad for parameter in tower.parameters())
        stem = tower.stem(*inputs)
        assert stem.dtype == torch.bfloat16 and not stem.requires_grad
        assert torch.equal(tower(*inputs), stem.float())  # in training
        masks = [torch.ones(3, 1, dtype=torch.bool)] * (len(inputs) - 1)
        assert torch.equal(tower(stem, *masks), stem.float())
        exact = tower.eval()(*inputs)
        assert exact.dtype == torch.float32
        assert (stem.float() - exact).abs().max() < 0.05 * exact.abs().max()
        # No tensor without dimensions: what is stored of a stem is known by its weights' bytes.
        assert all(value.ndim for value in tower.state_dict().values())


def test_what_decides_the_features_is_told_apart(make: Make) -> None:
    model = make()
    assert repr(image_tower(model, tokens=True)) != repr(image_tower(model))
    assert {"mean", "std"} <= set(image_tower(model).state_dict())
    assert "causal=True" in repr(text_tower(model))


def test_lora_trains_adapters_alone_and_each_gets_a_gradient(make: Make) -> None:
    model = make()
    tokens, mask = tokenised(TEXTS)
    for name, inputs in (("image", (pictures(),)), ("text", (tokens, mask))):
        tower: Any = (image_tower if name == "image" else text_tower)(model, lora_rank=2)
        assert tower.frozen is False
        adapters = [p for n, p in tower.named_parameters() if "lora_" in n]
        assert adapters and all(p.requires_grad == ("lora_" in n) for n, p in _named(tower))
        with torch.no_grad():  # B starts as zero, and A gets nothing through it
            for adapter in adapters:
                adapter.add_(torch.randn_like(adapter) * 0.1)
        tower.train()(*inputs).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in adapters)
        tower.eval()
        with torch.no_grad():
            expected = tower(*inputs)
            merged(tower)
            assert torch.allclose(tower(*inputs), expected, atol=1e-4)
        assert not [n for n, _ in _named(tower) if "lora_" in n]


def _named(tower: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(tower.named_parameters())


def test_all_weights_train_where_asked(make: Make) -> None:
    tower = text_tower(make(), frozen=False)
    tokens, mask = tokenised(TEXTS)
    tower.train()(tokens, mask).square().sum().backward()
    assert tower.frozen is False
    assert all(parameter.grad is not None for parameter in tower.parameters())


# TorchScript is what is exported; torch deprecates it.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize("kind", ["clip", "clipa"])
def test_traces_are_exact_at_another_batch_size_and_length(
    make: Make, kind: str, lora_rank: int
) -> None:
    model = make(**KINDS[kind][0])
    images = image_tower(model, tokens=True, lora_rank=lora_rank).eval()
    texts = text_tower(model, lora_rank=lora_rank).eval()
    for tower in (images, texts):
        merged(tower)
        tower.requires_grad_(False)
    traced = torch.jit.trace(images, pictures(2))
    assert torch.equal(traced(pictures(5, seed=1)), images(pictures(5, seed=1)))
    traced = torch.jit.trace(texts, tokenised(["a", "b c"], 8))
    for length in (16, CONTEXT):
        tokens, mask = tokenised([*TEXTS, ""], length)
        mask[-1] = False
        assert torch.equal(traced(tokens, mask), texts(tokens, mask))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "ViT-Q-99"}, "open_clip knows no model ViT-Q-99"),
        ({"model": "ViT-B-32"}, "pretrained=None, expected a tag of ViT-B-32: openai, "),
        ({"model": "ViT-B-32", "pretrained": "my/own.pt"}, "is a file, .*local-dir:FOLDER"),
        ({"pretrained": "openai"}, "pretrained=openai beside model=local-dir"),
        ({"model": "local-dir:nowhere"}, "local-dir:nowhere cannot be read"),
        ({"image_size": 224}, "image_size=224 of a checkpoint for 32 x 32.*data.image_size=32"),
        ({"frozen": False, "lora_rank": 2}, "lora_rank=2 with frozen=false"),
        ({"lora_rank": -1}, "LoRA rank -1"),
    ],
)
def test_what_does_not_fit_is_refused(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        image_tower(**{"model": make(), **options})


def test_texts_longer_than_the_context_are_refused(make: Make) -> None:
    with pytest.raises(ValueError, match=r"max_tokens=32 of a checkpoint for 24; .*: 24"):
        text_tower(make(), max_tokens=32)


def test_a_checkpoint_that_lacks_a_weight_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match=r"cannot be read .*ln_final.weight"):
        image_tower(make(without="ln_final.weight"))


def test_no_weights_at_all_are_refused(make: Make) -> None:
    model = make(without="all")
    (Path(model.removeprefix("local-dir:")) / "open_clip_model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be read"):
        text_tower(model)


@pytest.mark.parametrize("function", ["create_model", "get_tokenizer"])
def test_a_hub_that_is_not_there_is_one_line_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    def offline(*given: Any, **options: Any) -> Any:
        logging.getLogger("huggingface_hub").warning("Retrying in 8s [Retry 5/5].")
        logging.getLogger().error("Failed to download weights")
        try:
            raise ConnectionError("[Errno -2] Name or service not known")
        except ConnectionError as error:
            raise RuntimeError("the hub's long explanation " * 20) from error

    monkeypatch.setattr(open_clip, function, offline)
    cause = r"cannot be read \(the hub's .*…: \[Errno -2\] Name or service not known\); check"
    with pytest.raises(ValueError, match=cause) as caught:
        if function == "create_model":
            load_open_clip("ViT-B-32", "laion2b_s34b_b79k")
        else:
            open_clip_tokenizer("ViT-B-32")
    assert "\n" not in str(caught.value)
    assert not caplog.records
    assert logging.root.manager.disable == logging.NOTSET


@pytest.mark.parametrize(
    "vision", [{"layers": [1, 1, 1, 1], "head_width": 32}, KINDS["coca"][0]["vision"]]
)
def test_tokens_of_a_tower_without_projected_patches_are_refused(
    make: Make, vision: dict[str, Any]
) -> None:
    model = make(vision=vision)
    assert image_tower(model).eval()(pictures()).shape == (3, WIDTH)
    with pytest.raises(ValueError, match="no patches that go through its projection"):
        image_tower(model, tokens=True)


def test_the_checkpoints_own_padding_is_put_back(make: Make) -> None:
    last = {"no_causal_mask": True, "pool_type": "last", "hf_tokenizer_name": "its own"}
    model = make(text=last, model={"custom_text": True})
    words = {word: n for n, word in enumerate(["<unk>", "<pad>", "a", "b", "c"])}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(BPE(words, [], unk_token="<unk>")), pad_token="<pad>"
    ).save_pretrained(model.removeprefix("local-dir:"))
    ids = open_clip.get_tokenizer(model)(["abc", "ca"])
    assert ids[1].tolist() == [4, 2] + [1] * (CONTEXT - 2)
    tokens, mask = tokenised(["abc", "ca"], 8, open_clip_tokenizer(model))
    with torch.no_grad():
        expected = reference(model).encode_text(ids)
        assert torch.allclose(text_tower(model).eval()(tokens, mask), expected, atol=1e-5)


def test_weights_are_the_checkpoints(make: Make) -> None:
    model = make()
    stored = load_file(Path(model.removeprefix("local-dir:")) / "open_clip_model.safetensors")
    state = image_tower(model).network.state_dict()
    assert all(torch.equal(value, stored[f"visual.{name}"]) for name, value in state.items())
