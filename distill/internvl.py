"""The vision tower of InternVL, as published for transformers (the ``-hf`` repositories)."""

from __future__ import annotations

from typing import Any

from PIL import Image
from torch import Tensor

from distill.pretrained import check_model_type, image_identity, load_image_processor, load_network
from distill.teacher import FrozenTeacher
from keynet.models.checkpoint import require

# Where the tower's weights stand in a whole InternVL, older and newer layout. Without this,
# InternVLVisionModel finds none of them there and keeps random ones, with a warning.
TOWER = {r"^(model\.)?vision_tower\.": ""}


class InternVLTeacher(FrozenTeacher):
    """Pictures to the mean of InternViT's patch tokens; the tower has no pooled output.

    A picture is one tile, squeezed to the tower's own square: no mosaic of tiles, no thumbnail.

    Source: Chen et al., InternVL, CVPR 2024.

    Args:
        name: In reports and stores.
        path: A hub name or a folder: a whole InternVL, of which the vision tower alone is read,
            or an InternVLVisionModel.

    Raises:
        TeacherError: When the checkpoint has not all of the tower.
    """

    def __init__(self, *, name: str, path: str) -> None:
        transformers = require("transformers")
        model_type = check_model_type(name, path, ["internvl", "internvl_vision"])
        options: dict[str, Any] = {}
        if model_type == "internvl":
            whole = transformers.InternVLConfig.from_pretrained(path)
            options = {"config": whole.vision_config, "key_mapping": TOWER}
        network: Any = load_network(name, path, transformers.InternVLVisionModel, **options)
        height, width = network.embeddings.image_size
        self._processor = load_image_processor(
            name, path, size={"height": height, "width": width}, crop_to_patches=False
        )
        super().__init__(
            name=name,
            module=network,
            modalities=("image",),
            dim=network.config.hidden_size,
            preprocessing={"image": image_identity(self._processor), "pooling": "mean of patches"},
        )

    def pixels(self, picture: Image.Image) -> Tensor:
        pixels: Tensor = self._processor(images=picture, return_tensors="pt")["pixel_values"][0]
        return pixels

    def image_features(self, pixels: Tensor) -> Tensor:
        tokens: Tensor = self.module(pixel_values=pixels).last_hidden_state  # [N, 1 + P, D]
        return tokens[:, 1:].mean(1)  # the first is CLS
