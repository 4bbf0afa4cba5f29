"""What CLIP and SigLIP share in transformers: one network with a tower for each modality."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from PIL import Image
from torch import Tensor

from distill.pretrained import (
    image_identity,
    load_image_processor,
    load_tokenizer,
    tokenizer_identity,
)
from distill.teacher import MODALITIES, FrozenTeacher


class DualEncoder(FrozenTeacher):
    """A network with ``get_image_features`` and ``get_text_features``, and its own processor.

    Args:
        name: In reports and stores.
        path: A hub name or a folder that save_pretrained wrote.
        network: Loaded from there.
        dim: Width of its embeddings.
        text_preprocessing: What subclasses do to texts beside the tokenizer, as plain JSON.
    """

    def __init__(
        self,
        *,
        name: str,
        path: str,
        network: Any,
        dim: int,
        text_preprocessing: Mapping[str, Any],
    ) -> None:
        self._processor = load_image_processor(name, path)
        self._tokenizer = load_tokenizer(name, path)
        self._max_length = network.config.text_config.max_position_embeddings
        super().__init__(
            name=name,
            module=network,
            modalities=MODALITIES,
            dim=dim,
            preprocessing={
                "image": image_identity(self._processor),
                "text": tokenizer_identity(self._tokenizer),
                "max_length": self._max_length,
                **text_preprocessing,
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

    def text_features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        network: Any = self.module
        features: Tensor = network.get_text_features(**inputs).pooler_output
        return features
