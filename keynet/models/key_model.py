"""The one key model composition: encoders, aligner, fusion, hash head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from aligners.fusion import alignment_strength
from keynet.models.hash_head import HashHead
from keynet.types import KeyOutput


class KeyModel(nn.Module):
    """A request batch to keys and codes; recipes differ in what is plugged in and frozen.

    Args:
        image_encoder: uint8 [B, 3, S, S] to [B, image_encoder.num_features].
        text_encoder: tokens and mask [B, L] to [B, text_encoder.num_features].
        aligner: Both features and masks to unit vectors [B, D] of one space.
        fusion: Both unit vectors to the key [B, D].
        key_dim: D.
        bits: Code bits K.
    """

    def __init__(
        self,
        *,
        image_encoder: nn.Module,
        text_encoder: nn.Module,
        aligner: nn.Module,
        fusion: nn.Module,
        key_dim: int,
        bits: int,
    ) -> None:
        super().__init__()
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.aligner = aligner
        self.fusion = fusion
        self.hash_head = HashHead(key_dim=key_dim, bits=bits)
        self.key_dim = key_dim
        self.num_bits = bits

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
            images: uint8 [B, 3, S, S]; not looked at where ``image_mask`` is false.
            image_mask: bool [B].
            tokens: int64 [B, L].
            token_mask: bool [B, L]; a row without a true one has no text.
            image_index: int64 [B], each request's row of ``images``, so that a picture of several
                requests is encoded once; its own row when not given.
            text_index: int64 [B], the same for ``tokens`` and ``token_mask``.
        """
        text_mask = token_mask.any(-1)
        image_features = self.image_encoder(images).float()
        text_features = self.text_encoder(tokens, token_mask).float()
        if image_index is not None:
            image_features = image_features[image_index]
        if text_index is not None:
            text_features, text_mask = text_features[text_index], text_mask[text_index]
        aligned = self.aligner(
            {"image": image_features, "text": text_features},
            {"image": image_mask, "text": text_mask},
        )
        image, text = aligned["image"], aligned["text"]
        key = self.fusion(image, text)
        # Computed finitely, NaN last: a NaN further up would reach the gradients.
        alignment = torch.where(
            image_mask & text_mask, alignment_strength(image, text), float("nan")
        )
        return KeyOutput(key, image, text, self.hash_head(key), alignment)

    def hash_matrix(self) -> tuple[Tensor, Tensor]:
        """Return W [K, D] and b [K] with ``code = W key + b >= 0``."""
        return self.hash_head.folded()
