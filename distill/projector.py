"""From a vector of the student into the space of one teacher."""

from __future__ import annotations

from torch import Tensor, nn

HIDDEN_DIM = 512  # SPEC T4


class Projector(nn.Module):
    """``in -> 512 -> GELU -> out``, thrown away after training.

    Source: SPEC T4, which projects the teacher. We project the student: a trainable map of the
    target has the constant as its best solution. So do RADIO and UNIC.

    Args:
        in_dim: Width of the student's vector.
        out_dim: Width of the teacher's embedding.
    """

    def __init__(self, *, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.scale = in_dim**0.5  # unit vectors in: entries of order one into the first layer
        self.layers = nn.Sequential(
            nn.Linear(in_dim, HIDDEN_DIM), nn.GELU(), nn.Linear(HIDDEN_DIM, out_dim)
        )

    def forward(self, unit: Tensor) -> Tensor:
        """Return [B, out_dim] of unit vectors [B, in_dim]."""
        projected: Tensor = self.layers(self.scale * unit)
        return projected
