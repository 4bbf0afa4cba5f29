"""CLIP-Adapter: a small MLP over frozen features, blended with them."""

from __future__ import annotations

from torch import Tensor, nn


class ClipAdapter(nn.Module):
    """ratio * MLP(x) + (1 - ratio) * x, the MLP with a bottleneck and without biases.

    Without biases, a feature k times as long comes out k times as long (k > 0): the ratio blends
    directions alike whatever norm an encoder gives its features.

    Args:
        dim: Width C of the features.
        reduction: The bottleneck is ``dim // reduction`` wide.
        ratio: Share of the MLP in the result, in [0, 1]; 0 is the identity.

    Raises:
        ValueError: If the ratio is not in [0, 1] or the bottleneck is empty.

    Source: Gao et al., CLIP-Adapter, IJCV 2024; SPEC K4. The ReLU after the second layer is in its
    authors' code, not in its equations.
    """

    def __init__(self, *, dim: int, reduction: int = 4, ratio: float = 0.2) -> None:
        super().__init__()
        if not 0 <= ratio <= 1:
            raise ValueError(f"ratio={ratio}: expected a share in [0, 1]")
        if not 1 <= reduction <= dim:
            raise ValueError(f"reduction={reduction}: expected 1 to dim={dim}")
        self.ratio = ratio
        self.mlp = nn.Sequential(
            nn.Linear(dim, dim // reduction, bias=False),
            nn.ReLU(),
            nn.Linear(dim // reduction, dim, bias=False),
            nn.ReLU(),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return the adapted features [..., C].

        Args:
            features: [..., C], of any norm.
        """
        adapted: Tensor = self.ratio * self.mlp(features) + (1 - self.ratio) * features
        return adapted
