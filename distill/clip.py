"""CLIP as published for transformers: pictures and texts in one space."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from PIL import Image
from torch import Tensor

from distill.pretrained import (
    check_model_type,
    image_identity,
    load_image_processor,
    load_network,
    load_tokenizer,
    require,
    tokenizer_identity,
)
from distill.teacher import MODALITIES, FrozenTeacher


class ClipTeacher(FrozenTeacher):
    """A CLIPModel with its own processor; texts past its positions (77) are cut, as in training.

    Source: Radford et al., Learning Transferable Visual Models From Natural Language Supervision,
    ICML 2021.

    Args:
        name: In reports and stores.
        path: A hub name or a folder that save_pretrained wrote.

    Raises:
        TeacherError: When the checkpoint is not a whole CLIP.
    """

    def __init__(self, *, name: str, path: str) -> None:
        check_model_type(name, path, ["clip"])
        network: Any = load_network(name, path, require("transformers").CLIPModel)
        self._processor = load_image_processor(name, path)
        self._tokenizer = load_tokenizer(name, path)
        self._max_length = network.config.text_config.max_position_embeddings
        super().__init__(
            name=name,
            module=network,
            modalities=MODALITIES,
            dim=network.config.projection_dim,
            preprocessing={
                "image": image_identity(self._processor),
                "text": tokenizer_identity(self._tokenizer),
                "max_length": self._max_length,
            },
            temperature=math.exp(-network.logit_scale.item()),
        )

    def pixels(self, picture: Image.Image) -> Tensor:
        pixels: Tensor = self._processor(images=picture, return_tensors="pt")["pixel_values"][0]
        return pixels

    def image_features(self, pixels: Tensor) -> Tensor:
        network: Any = self.module
        features: Tensor = network.get_image_features(pixel_values=pixels).pooler_output
        return features

    def tokenise(self, texts: list[str]) -> dict[str, Tensor]:
        tokens = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt"
        )
        return {key: tokens[key] for key in ("input_ids", "attention_mask")}

    def text_features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        network: Any = self.module
        features: Tensor = network.get_text_features(**inputs).pooler_output
        return features
