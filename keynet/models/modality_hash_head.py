"""Hash head by modality: one half of the code from the image, the other from the text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keynet.types import CODE_BITS

MODALITIES = ("image", "text")
LEAST_ROWS = 2  # of which a batch has statistics


class ModalityHashHead(nn.Module):
    """Two linear maps with BatchNorm before the sign, over the two blocks of a key.

    The first half of the key (``aligners.concatenation``) gives the first half of the code, the
    second the second. The half of an absent modality is constant, the signs of its part of b, and
    says nothing: distances between codes must mask it (``keynet.cache.modality_distance``, with
    weight 0), unless absence is part of the scope, where it is equal on both sides.

    A prefix of half the bits is the image alone. Statistics of BatchNorm are of the rows that have
    the modality; in a batch with fewer than two of them, the running ones serve.

    Args:
        key_dim: Width D of the key, even.
        bits: Code bits K.

    Source: SPEC K7; Hoe et al., OrthoHash, NeurIPS 2021, for BatchNorm before the sign.
    """

    def __init__(self, *, key_dim: int, bits: int) -> None:
        super().__init__()
        if bits not in CODE_BITS:
            raise ValueError(f"bits={bits}: expected one of {CODE_BITS}")
        if key_dim < 2 or key_dim % 2:
            raise ValueError(f"key_dim={key_dim}: expected an even width, half for each modality")
        self.key_dim, self.bits = key_dim, bits
        self.linears = nn.ModuleDict(
            {name: nn.Linear(key_dim // 2, bits // 2, bias=False) for name in MODALITIES}
        )
        for weight in self.linears.parameters():
            nn.init.orthogonal_(weight)
        self.norms = nn.ModuleDict(
            {name: nn.BatchNorm1d(bits // 2, affine=False) for name in MODALITIES}
        )

    @property
    def blocks(self) -> dict[str, tuple[int, int]]:
        """The bits of each modality, first and end."""
        half = self.bits // 2
        return {"image": (0, half), "text": (half, self.bits)}

    def folded(self) -> tuple[Tensor, Tensor]:
        """Return W [K, D], zero between the blocks, and b [K]; running statistics folded in."""
        matrices, offsets = zip(*(self._folded(name) for name in MODALITIES), strict=True)
        matrix: Tensor = torch.block_diag(*matrices)  # type: ignore[no-untyped-call]
        return matrix, torch.cat(offsets)

    def taught(self) -> tuple[Tensor, Tensor]:
        """Return W [K, D] and b [K] of training: those of the code."""
        return self.folded()

    def _folded(self, name: str) -> tuple[Tensor, Tensor]:
        norm, linear = self.norms[name], self.linears[name]
        assert isinstance(norm, nn.BatchNorm1d)
        assert isinstance(linear, nn.Linear)
        assert norm.running_mean is not None and norm.running_var is not None
        scale = torch.rsqrt(norm.running_var + norm.eps)
        return linear.weight * scale.unsqueeze(1), -norm.running_mean * scale

    def forward(self, key: Tensor) -> Tensor:
        """Return logits [B, K]; in evaluation mode they do not depend on the batch.

        Args:
            key: [B, D]; zeros in the block of an absent modality.
        """
        if not self.training:
            return F.linear(key, *self.folded())
        halves = key.chunk(2, dim=-1)
        return torch.cat(
            [self._trained(name, half) for name, half in zip(MODALITIES, halves, strict=True)],
            dim=-1,
        )

    def _trained(self, name: str, block: Tensor) -> Tensor:
        # As in evaluation, and all there is for rows without the modality.
        logits = F.linear(block, *self._folded(name))
        rows = block.detach().any(-1).nonzero().squeeze(1)
        if len(rows) < LEAST_ROWS:
            return logits
        standardised: Tensor = self.norms[name](self.linears[name](block[rows]))
        return logits.index_put((rows,), standardised)
