"""CLIP-like models as published for open_clip."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from typing import Any

from PIL import Image
from torch import Tensor

from distill.pretrained import tokenizer_identity
from distill.teacher import MODALITIES, FrozenTeacher, TeacherError
from keynet.models.checkpoint import READ_ERRORS, one_line, require
from keynet.models.open_clip_towers import check_source


class OpenClipTeacher(FrozenTeacher):
    """An open_clip model with its own preprocessing and tokenizer.

    Source: Cherti et al., Reproducible Scaling Laws for Contrastive Language-Image Learning,
    CVPR 2023.

    Args:
        name: In reports and stores.
        model: An architecture that open_clip knows, with ``pretrained``; or ``hf-hub:ORG/REPO``;
            or ``local-dir:FOLDER`` with open_clip_config.json and the weights.
        pretrained: A tag of that architecture, such as laion2b_s34b_b79k. No file: open_clip
            would give it default preprocessing, which is wrong for some.

    Raises:
        TeacherError: When there are no such weights, or not all of them.
    """

    def __init__(self, *, name: str, model: str, pretrained: str | None = None) -> None:
        open_clip = require("open_clip")
        try:
            check_source(model, pretrained, open_clip)
        except ValueError as error:
            raise TeacherError(f"teacher {name}: {error}") from error
        shown = model if pretrained is None else f"{model} with {pretrained}"
        try:
            with warnings.catch_warnings():
                # Else weights run under an activation that they were not trained with.
                warnings.filterwarnings("error", message="QuickGELU mismatch")
                network, self._transform = open_clip.create_model_from_pretrained(model, pretrained)
            self._tokenizer = open_clip.get_tokenizer(model)
        except UserWarning as warning:
            raise TeacherError(
                f"teacher {name}: {one_line(warning)}; take model={model}-quickgelu"
            ) from warning
        except READ_ERRORS as error:
            raise TeacherError(
                f"teacher {name}: {shown} cannot be read ({one_line(error)}); check the name, "
                "the network, and that config and weights are of one checkpoint"
            ) from error
        super().__init__(
            name=name,
            module=network,
            modalities=MODALITIES,
            dim=open_clip.get_model_config(model)["embed_dim"],
            preprocessing={
                "image": dict(network.visual.preprocess_cfg),
                "text": _tokenizer_identity(self._tokenizer),
            },
            temperature=math.exp(-network.logit_scale.item()),
        )

    def pixels(self, picture: Image.Image) -> Tensor:
        pixels: Tensor = self._transform(picture)
        return pixels

    def image_features(self, pixels: Tensor) -> Tensor:
        network: Any = self.module
        features: Tensor = network.encode_image(pixels)
        return features

    def tokenise(self, texts: list[str]) -> dict[str, Tensor]:
        return {"tokens": self._tokenizer(texts)}

    def text_features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        network: Any = self.module
        features: Tensor = network.encode_text(inputs["tokens"])
        return features


def _tokenizer_identity(tokenizer: Any) -> dict[str, Any]:
    """Return all that decides what one of open_clip's tokenizers makes of a text."""
    # Functions by their names; None where a kind of tokenizer has no such setting.
    cleaning = getattr(tokenizer, "clean_fn", None)
    found: dict[str, Any] = {
        "kind": type(tokenizer).__name__,
        "context_length": tokenizer.context_length,
        "clean": getattr(cleaning, "__name__", None),
        "mode": getattr(tokenizer, "tokenizer_mode", None),
        "strip_sep_token": getattr(tokenizer, "strip_sep_token", None),
    }
    if hasattr(tokenizer, "tokenizer"):  # one of transformers inside
        return {**found, **tokenizer_identity(tokenizer.tokenizer)}
    ranks = sorted((rank, pair) for pair, rank in tokenizer.bpe_ranks.items())
    content = json.dumps([tokenizer.encoder, ranks, tokenizer.pat.pattern], sort_keys=True)
    return {**found, "sha256": hashlib.sha256(content.encode()).hexdigest()}
