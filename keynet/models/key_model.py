"""The one key model composition: encoders, adapter, aligner, fusion, hash head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from aligners.concatenation import Concatenation
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

    Raises:
        ValueError: When the parts do not fit each other.
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
        _check_widths(
            {"image": image_encoder, "text": text_encoder}, aligner, fusion, hash_head.key_dim
        )
        concatenated = isinstance(fusion, Concatenation)
        # Of a key that mixes modalities, the blocks would be of none.
        if getattr(hash_head, "blocks", None) is not None and not concatenated:
            raise ValueError(
                f"hash_head=by_modality needs fusion=concatenation, not {type(fusion).__name__}, "
                "in whose key both modalities are mixed; take it, or hash_head=shared"
            )
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.image_adapter = image_adapter
        self.aligner = aligner
        self.fusion = fusion
        self.hash_head = hash_head
        self.key_dim: int = hash_head.key_dim
        self.num_bits: int = hash_head.bits
        # Concatenation looks at its halves itself.
        self._aligned_dim: int | None = None if concatenated else getattr(fusion, "key_dim", None)

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
        image_features = self.image_features(images)
        text_features = self.text_features(tokens, token_mask)
        if image_index is not None:
            image_features = image_features[image_index]
        if text_index is not None:
            text_features, text_mask = text_features[text_index], text_mask[text_index]
        vectors = self.vectors(image_features, text_features, image_mask, text_mask)
        return self.output(*vectors, image_mask & text_mask)

    def image_features(self, images: Tensor) -> Tensor:
        """Return adapted image features [B, C] or [B, 1 + T, C]."""
        features: Tensor = self.image_adapter(self.image_encoder(images).float())
        return features

    def text_features(self, tokens: Tensor, token_mask: Tensor) -> Tensor:
        """Return text features [B, W]."""
        features: Tensor = self.text_encoder(tokens, token_mask).float()
        return features

    def vectors(
        self, image_features: Tensor, text_features: Tensor, image_mask: Tensor, text_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return key, image and text of each request, as in ``KeyOutput``."""
        if image_features.ndim == 3:
            pooled, image_tokens = image_features[:, 0], image_features[:, 1:]
        else:
            pooled, image_tokens = image_features, image_features.unsqueeze(1)
        aligned = self.aligner(
            {"image": pooled, "text": text_features},
            {"image": image_mask, "text": text_mask},
        )
        image, text = aligned["image"], aligned["text"]
        jit: Any = torch.jit
        eager = not (jit.is_tracing() or torch.compiler.is_compiling())
        if eager and self._aligned_dim not in (None, image.shape[-1]):
            raise ValueError(
                f"the aligner's vectors are {image.shape[-1]} wide and the fusion takes "
                f"{self._aligned_dim}; give aligner.key_dim and fusion.key_dim one width"
            )
        return self.fusion(image, text, image_tokens), image, text

    def output(self, key: Tensor, image: Tensor, text: Tensor, both: Tensor) -> KeyOutput:
        """Return vectors with their code logits and alignment; ``both`` bool [B]: has both."""
        # Computed finitely, NaN last: a NaN further up would reach the gradients.
        alignment = torch.where(both, alignment_strength(image, text), float("nan"))
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

    def taught_matrix(self) -> tuple[Tensor, Tensor]:
        """Return W [K, D] and b [K] of the logits that losses of codes take."""
        taught: tuple[Tensor, Tensor] = self.hash_head.taught()
        return taught


def _check_widths(
    encoders: dict[str, nn.Module], aligner: nn.Module, fusion: nn.Module, key_dim: int
) -> None:
    """Compare widths where both sides state theirs."""
    taken = getattr(aligner, "input_dims", {})
    for name, encoder in encoders.items():
        width = getattr(encoder, "num_features", None)
        if name in taken and width not in (None, taken[name]):
            raise ValueError(
                f"the {name} encoder gives {width} features and the aligner takes {taken[name]}; "
                f"set encoder.dims.{name}={width}"
            )
    fused = getattr(fusion, "key_dim", key_dim)
    if fused != key_dim:
        raise ValueError(
            f"fusion.key_dim={fused} and hash_head.key_dim={key_dim}: expected one width, the "
            "key's; set key_dim alone"
        )
