"""MM-Align head: any set of modality embeddings into one unit key space.

Source: SPEC T1 and K1 (L2-normalise each modality, project all into one shared subspace).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn


class MMAlign(nn.Module):
    """One projection per modality onto the unit sphere of a shared space.

    Args:
        input_dims: Width of each modality's embedding, by name.
        key_dim: Width D of the shared space.
        hidden_dim: Width of the hidden layer; 0 makes each projection linear.
        dropout: Share of the embeddings' entries left out in training; what keeps a projection of
            wide frozen embeddings from learning its training pairs by heart.
    """

    def __init__(
        self,
        *,
        input_dims: Mapping[str, int],
        key_dim: int,
        hidden_dim: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.projections = nn.ModuleDict(
            {
                name: nn.Linear(dim, key_dim)
                if hidden_dim == 0
                else nn.Sequential(
                    nn.Linear(dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, key_dim)
                )
                for name, dim in input_dims.items()
            }
        )

    def forward(
        self, embeddings: Mapping[str, Tensor], masks: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return each modality [B, D]: unit norm where present, zero where absent.

        Args:
            embeddings: By modality, [B, input_dims[name]].
            masks: By modality, bool [B], true where present.
        """
        return {
            name: self.project(name, embeddings[name]) * masks[name].unsqueeze(-1)
            for name in self.projections
        }

    def project(self, name: str, embedding: Tensor) -> Tensor:
        """Return one modality's embeddings [B, input_dims[name]] as unit vectors [B, D]."""
        unit = self.dropout(F.normalize(embedding, dim=-1))
        # At unit variance of its entries, not of its length, a layer starts well scaled.
        return F.normalize(self.projections[name](unit * unit.shape[-1] ** 0.5), dim=-1)
