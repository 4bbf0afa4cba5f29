"""The vision tower of a CLIP as published for transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from keynet.models.checkpoint import load_image_normalisation, load_network, require
from keynet.models.pretrained import PretrainedImageTower

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")


class ClipVisionTower(PretrainedImageTower):
    """CLIP's vision transformer to its pooled feature, before the projection into CLIP's space.

    Source: Radford et al., Learning Transferable Visual Models From Natural Language Supervision,
    ICML 2021.

    Args:
        path: A folder that save_pretrained wrote, or a hub name; a whole CLIP will do. With its
            preprocessor_config.json.
        image_size: The checkpoint's pixels a side.
        frozen, lora_rank: See ``PretrainedTower``.

    Raises:
        ValueError: When the checkpoint lacks something, or does not fit the other arguments.
    """

    def __init__(
        self, *, path: str, image_size: int, frozen: bool = True, lora_rank: int = 0
    ) -> None:
        network: Any = load_network(path, require("transformers").CLIPVisionModel)
        mean, std = load_image_normalisation(path)
        size = network.config.image_size
        super().__init__(
            network,
            mean=mean,
            std=std,
            image_size=image_size,
            checkpoint_size=(size, size),
            num_features=network.config.hidden_size,
            frozen=frozen,
            lora_rank=lora_rank,
            lora_targets=LORA_TARGETS,
        )

    def encode(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.network(pixel_values=pixels).pooler_output
        return features
