"""SigLIP and SigLIP 2 at a fixed resolution, as published for transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from distill.dual_encoder import DualEncoder
from distill.pretrained import check_model_type, load_network
from distill.teacher import TeacherError
from keynet.models.checkpoint import require


class SiglipTeacher(DualEncoder):
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
        super().__init__(
            name=name,
            path=path,
            network=network,
            dim=network.config.vision_config.hidden_size,
            text_preprocessing={"lower_case": True, "padding": "max_length"},
        )

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
