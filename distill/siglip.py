"""SigLIP and SigLIP 2 at a fixed resolution, as published for transformers."""

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
from distill.teacher import MODALITIES, FrozenTeacher, TeacherError


class SiglipTeacher(FrozenTeacher):
    """A SiglipModel with its own processor; SigLIP 2 at a fixed resolution is one too.

    Texts are lower-cased, padded to all of its positions (64) and cut there, and enter without a
    mask, as in training: the last position is pooled.

    Source: Zhai et al., Sigmoid Loss for Language Image Pre-Training, ICCV 2023; Tschannen et al.,
    SigLIP 2, arXiv 2502.14786.

    Args:
        name: In reports and stores.
        path: A hub name or a folder that save_pretrained wrote.

    Raises:
        TeacherError: When the checkpoint is not a whole SigLIP, or a NaFlex one.
    """

    def __init__(self, *, name: str, path: str) -> None:
        if check_model_type(name, path, ["siglip", "siglip2"]) == "siglip2":
            raise TeacherError(
                f"teacher {name}: {path} is a NaFlex SigLIP 2, whose patches vary with the "
                "picture; take a fixed resolution, such as google/siglip2-base-patch16-256"
            )
        network: Any = load_network(name, path, require("transformers").SiglipModel)
        self._processor = load_image_processor(name, path)
        self._tokenizer = load_tokenizer(name, path)
        self._max_length = network.config.text_config.max_position_embeddings
        super().__init__(
            name=name,
            module=network,
            modalities=MODALITIES,
            dim=network.config.vision_config.hidden_size,
            preprocessing={
                "image": image_identity(self._processor),
                "text": tokenizer_identity(self._tokenizer),
                "lower_case": True,
                "max_length": self._max_length,
                "padding": "max_length",
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
            # The Gemma tokenizer of SigLIP 2's checkpoints keeps capitals under transformers 5.
            [text.lower() for text in texts],
            padding="max_length",
            truncation=True,
            max_length=self._max_length,
            return_tensors="pt",
        )
        return {"input_ids": tokens["input_ids"]}

    def text_features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        network: Any = self.module
        features: Tensor = network.get_text_features(**inputs).pooler_output
        return features
