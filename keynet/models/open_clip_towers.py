"""Both towers of a CLIP-like model as published for open_clip."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from keynet.models.checkpoint import READ_ERRORS, one_line, require
from keynet.models.open_clip_tokenizer import converted
from keynet.models.pretrained import PretrainedImageTower, PretrainedTextTower

SCHEMES = ("hf-hub:", "local-dir:")
LORA_TARGETS = ("attn", "c_fc", "c_proj")


class OpenClipImageTower(PretrainedImageTower):
    """The image encoder, as open_clip's encode_image.

    Source: Cherti et al., Reproducible Scaling Laws for Contrastive Language-Image Learning,
    CVPR 2023.

    Args:
        model: An architecture that open_clip knows, with ``pretrained``; or ``hf-hub:ORG/REPO``;
            or ``local-dir:FOLDER`` with open_clip_config.json and the weights.
        pretrained: A tag of that architecture, such as laion2b_s34b_b79k.
        image_size: The checkpoint's pixels a side.
        tokens: Give the patches too, normed and projected as the pooled feature is.
        frozen, lora_rank: See ``PretrainedTower``.

    Raises:
        ValueError: When there are no such weights, or they do not fit the other arguments.
    """

    def __init__(
        self,
        *,
        model: str,
        pretrained: str | None = None,
        image_size: int,
        tokens: bool,
        frozen: bool = True,
        lora_rank: int = 0,
    ) -> None:
        visual = load_open_clip(model, pretrained).visual
        if tokens and not _has_patches(visual):
            raise ValueError(
                f"tokens of {model}: its {type(visual).__name__} has no patches that go through "
                "its projection as the pooled feature does; take one of open_clip's own vision "
                "transformers without attention pooling, or tokens=false"
            )
        self.tokens = tokens
        if hasattr(visual, "output_tokens"):
            visual.output_tokens = tokens
        size = visual.image_size
        super().__init__(
            visual,
            mean=visual.preprocess_cfg["mean"],
            std=visual.preprocess_cfg["std"],
            image_size=image_size,
            checkpoint_size=(size, size) if isinstance(size, int) else size,
            num_features=_config(model)["embed_dim"],
            frozen=frozen,
            lora_rank=lora_rank,
            lora_targets=LORA_TARGETS,
        )

    def extra_repr(self) -> str:
        return f"tokens={self.tokens}"

    def encode(self, pixels: Tensor) -> Tensor:
        features: Tensor
        if not self.tokens:
            features = self.network(pixels)
            return features
        pooled, patches = self.network(pixels)
        if self.network.final_ln_after_pool:
            patches = self.network.ln_post(patches)
        features = torch.cat([pooled.unsqueeze(1), patches @ self.network.proj], dim=1)
        return features


class OpenClipTextTower(PretrainedTextTower):
    """The text encoder, as open_clip's encode_text; its tokenizer is ``open_clip_tokenizer``.

    Source: as ``OpenClipImageTower``.

    Args:
        model, pretrained: As of ``OpenClipImageTower``.
        max_tokens: Longest text, up to the checkpoint's context (77 for most).
        frozen, lora_rank: See ``PretrainedTower``.

    Raises:
        ValueError: When there are no such weights, or they do not fit the other arguments.
    """

    def __init__(
        self,
        *,
        model: str,
        pretrained: str | None = None,
        max_tokens: int,
        frozen: bool = True,
        lora_rank: int = 0,
    ) -> None:
        network = load_open_clip(model, pretrained)
        for part in ("visual", "text_decoder", "logit_scale", "logit_bias"):
            if hasattr(network, part):
                delattr(network, part)
        tokenizer = _own_tokenizer(model)
        inner = getattr(tokenizer, "tokenizer", None)
        self.padding = 0 if inner is None else inner.pad_token_id
        self.context = tokenizer.context_length
        super().__init__(
            network,
            max_tokens=max_tokens,
            positions=self.context,
            num_features=_config(model)["embed_dim"],
            frozen=frozen,
            lora_rank=lora_rank,
            lora_targets=LORA_TARGETS,
        )
        # What a causal encoder makes of a token does not depend on what stands after it.
        self.causal = _is_causal(network)

    def extra_repr(self) -> str:
        return f"causal={self.causal}, padding={self.padding}, context={self.context}"

    def encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        # As open_clip pads, which the pooling looks at, and attention where it is not causal.
        tokens = tokens.masked_fill(~mask, self.padding)
        if self.causal:
            return _encode_cut(self.network, tokens)
        batch, length = tokens.shape
        rest = tokens.new_full((batch, self.context - length), self.padding)
        filled = torch.cat([tokens, rest], dim=1)
        features: Tensor = self.network.encode_text(filled, normalize=False)
        return features


def open_clip_tokenizer(model: str) -> Tokenizer:
    """Return the tokenizer of an open_clip model, with the tokens that begin and end a text.

    It gives open_clip's own ids, but: text that was decoded as another encoding is not repaired,
    characters of another width (ff01 to ffef) stay, of HTML entities the five of XML and the
    no-break space are known, and a text cannot name a special token.

    Args:
        model: As of ``OpenClipTextTower``.

    Raises:
        ValueError: When it cannot be read, or does what our preprocessor cannot.
    """
    return converted(_own_tokenizer(model))


def load_open_clip(model: str, pretrained: str | None) -> Any:
    """Return an open_clip model in float32, every weight from the checkpoint.

    Raises:
        ValueError: When there are no such weights, or not all of them.
    """
    open_clip = require("open_clip")
    check_source(model, pretrained, open_clip)
    try:
        with _quiet(), warnings.catch_warnings():
            # Else weights run under an activation that they were not trained with.
            warnings.filterwarnings("error", message="QuickGELU mismatch")
            return open_clip.create_model(
                model, pretrained, require_pretrained=True, force_patch_dropout=0.0
            )
    except UserWarning as warning:
        raise ValueError(f"{one_line(warning)}; take model={model}-quickgelu") from warning
    except READ_ERRORS as error:
        shown = model if pretrained is None else f"{model} with {pretrained}"
        raise ValueError(
            f"{shown} cannot be read ({_reason(error)}); check the name, the network, and that "
            "config and weights are of one checkpoint"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No log of each try of the hub and of open_clip: what went wrong is in our line."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(disabled)


def _reason(error: BaseException) -> str:
    """Return an error and, where it has one, its first cause, which open_clip cuts or hides."""
    first, before = error, error.__cause__ or error.__context__
    while before is not None:
        first, before = before, before.__cause__ or before.__context__
    return one_line(error) if first is error else f"{one_line(error)}: {one_line(first)}"


def check_source(model: str, pretrained: str | None, open_clip: Any) -> None:
    """Refuse what open_clip would ignore, guess or leave random."""
    if model.startswith(SCHEMES):
        if pretrained is not None:
            raise ValueError(
                f"pretrained={pretrained} beside model={model}, which has its weights with it; "
                "leave pretrained out"
            )
        return
    if model not in open_clip.list_models():
        raise ValueError(
            f"open_clip knows no model {model}; see open_clip.list_models(), or give "
            "hf-hub:ORG/REPO or local-dir:FOLDER"
        )
    tags = open_clip.list_pretrained_tags_by_model(model)
    if pretrained in tags:
        return
    if pretrained is not None and (Path(pretrained).exists() or "/" in pretrained):
        raise ValueError(
            f"pretrained={pretrained} is a file, which says nothing of its preprocessing; put "
            "open_clip_config.json beside it and give model=local-dir:FOLDER"
        )
    raise ValueError(
        f"pretrained={pretrained}, expected a tag of {model}: " + (", ".join(tags) or "it has none")
    )


def _config(model: str) -> dict[str, Any]:
    found: dict[str, Any] = require("open_clip").get_model_config(model)
    return found


def _own_tokenizer(model: str) -> Any:
    open_clip = require("open_clip")
    if not model.startswith(SCHEMES) and model not in open_clip.list_models():
        raise ValueError(f"open_clip knows no model {model}; see open_clip.list_models()")
    try:
        with _quiet():
            return open_clip.get_tokenizer(model)
    except READ_ERRORS as error:
        raise ValueError(
            f"the tokenizer of {model} cannot be read ({_reason(error)}); check its files"
        ) from error


def _has_patches(visual: nn.Module) -> bool:
    transformer = require("open_clip.transformer").VisionTransformer
    return isinstance(visual, transformer) and visual.attn_pool is None


def _text_parts(network: Any) -> tuple[Any, str | None, int | None]:
    """Return what holds the text encoder's layers, its pooling and the token that ends a text."""
    if hasattr(network, "text"):
        text = network.text
        return text, getattr(text, "pool_type", None), getattr(text, "eos_id", None)
    return network, network.text_pool_type, network.text_eos_id


def _is_causal(network: Any) -> bool:
    """Say whether a token's features do not depend on the padding after it."""
    text, pooling, _ = _text_parts(network)
    appended = getattr(text, "cls_emb", None) is not None
    masked = getattr(text, "attn_mask", None) is not None
    return masked and not appended and pooling in ("argmax", "eos")


def _encode_cut(network: Any, tokens: Tensor) -> Tensor:
    """Return encode_text of tokens [B, L] of a causal encoder, which itself wants all positions."""
    text, pooling, end = _text_parts(network)
    length = tokens.shape[1]
    x = text.token_embedding(tokens) + text.positional_embedding[:length]
    x = text.ln_final(text.transformer(x, attn_mask=text.attn_mask[:length, :length]))
    pool = require("open_clip.transformer").text_global_pool
    pooled: Tensor = pool(x, tokens, pooling, eos_token_id=end)
    projection = text.text_projection
    if projection is None:
        return pooled
    features: Tensor = (
        projection(pooled) if isinstance(projection, nn.Module) else pooled @ projection
    )
    return features
