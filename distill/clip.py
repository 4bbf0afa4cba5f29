"""CLIP as published for transformers: pictures and texts in one space."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from distill.dual_encoder import DualEncoder
from distill.pretrained import check_model_type, load_network
from keynet.models.checkpoint import require


class ClipTeacher(DualEncoder):
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
        super().__init__(
            name=name,
            path=path,
            network=network,
            dim=network.config.projection_dim,
            text_preprocessing={},
        )

    def tokenise(self, texts: list[str]) -> dict[str, Tensor]:
        tokens = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt"
        )
        return {key: tokens[key] for key in ("input_ids", "attention_mask")}
