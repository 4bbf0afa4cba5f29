"""The one key model composition: encoders, adapter, aligner, fusion, hash head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from aligners.fusion import alignment_strength
from keynet.types import KeyOutput


class KeyModel(nn.Module):
    """A request batch to keys and codes; recipes differ in what is plugged in and frozen.

    Args:
        image_encoder: uint8 [B, 3, S, S] to [B, C], or to [B, 1 + T, C]: the pooled feature, then
            T tokens.
        text_encoder: tokens and mask [B, L] to [B, W].
        image_adapter: Image features to image features, of either shape.
        aligner: Both features and masks to unit vectors [B, D] of one space.
        fusion: Both unit vectors and the image tokens [B, T, C] (of an encoder without any, its
            feature alone) to the key.
        hash_head: The key to code logits [B, K].
    """

    def __init__(
        self,
        *,
        image_encoder: nn.Module,
        text_encoder: nn.Module,
        image_adapter: nn.Module,
        aligner: nn.Module,
        fusion: nn.Module,
        hash_head: Any,
    ) -> None:
        super().__init__()
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.image_adapter = image_adapter
        self.aligner = aligner
        self.fusion = fusion
        self.hash_head = hash_head
        self.key_dim: int = hash_head.key_dim
        self.num_bits: int = hash_head.bits

    def forward(
        self,
        images: Tensor,
        image_mask: Tensor,
        tokens: Tensor,
        token_mask: Tensor,
        image_index: Tensor | None = None,
        text_index: Tensor | None = None,
    ) -> KeyOutput:
        """Return keys and codes.

        Args:
            images: uint8 [B, 3, S, S]; not looked at where ``image_mask`` is false. In training,
                what a frozen encoder made of them may stand here, as in place of ``tokens``.
            image_mask: bool [B].
            tokens: int64 [B, L].
            token_mask: bool [B, L]; a row without a true one has no text.
            image_index: int64 [B], each request's row of ``images``, so that a picture of several
                requests is encoded once; its own row when not given.
            text_index: int64 [B], the same for ``tokens`` and ``token_mask``.
        """
        text_mask = token_mask.any(-1)
        image_features = self.image_adapter(self.image_encoder(images).float())
        text_features = self.text_encoder(tokens, token_mask).float()
        if image_index is not None:
            image_features = image_features[image_index]
        if text_index is not None:
            text_features, text_mask = text_features[text_index], text_mask[text_index]
        if image_features.ndim == 3:
            pooled, image_tokens = image_features[:, 0], image_features[:, 1:]
        else:
            pooled, image_tokens = image_features, image_features.unsqueeze(1)
        aligned = self.aligner(
            {"image": pooled, "text": text_features},
            {"image": image_mask, "text": text_mask},
        )
        image, text = aligned["image"], aligned["text"]
        key = self.fusion(image, text, image_tokens)
        # Computed finitely, NaN last: a NaN further up would reach the gradients.
        alignment = torch.where(
            image_mask & text_mask, alignment_strength(image, text), float("nan")
        )
        return KeyOutput(key, image, text, self.hash_head(key), alignment)

    @property
    def code_blocks(self) -> dict[str, tuple[int, int]] | None:
        """Bits of each modality, first and end, where the code has such."""
        blocks: dict[str, tuple[int, int]] | None = getattr(self.hash_head, "blocks", None)
        return blocks

    def hash_matrix(self) -> tuple[Tensor, Tensor]:
        """Return W [K, D] and b [K] with ``code = W key + b >= 0``."""
        folded: tuple[Tensor, Tensor] = self.hash_head.folded()
        return folded
