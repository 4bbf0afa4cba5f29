"""A low-rank correction of features, for a model that is otherwise finished."""

from __future__ import annotations

from torch import Tensor, nn


class LowRankAdapter(nn.Module):
    """x + up(down(x)), which starts as the identity.

    Goes behind the vision encoder of a finished model and is trained with everything else frozen:
    the keys of that model are where training starts from.

    Args:
        dim: Width C of the features.
        rank: Width between ``down`` and ``up``.

    Raises:
        ValueError: If the rank is not in 1 to ``dim``.

    Source: SPEC T6. ``up`` starts at zero as in LoRA (Hu et al., ICLR 2022, section 4.1), whose
    alpha / rank is left out: at one rank it is a factor of the learning rate.
    """

    def __init__(self, *, dim: int, rank: int = 8) -> None:
        super().__init__()
        if not 1 <= rank <= dim:
            raise ValueError(f"rank={rank}: expected 1 to dim={dim}")
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Return the adapted features [..., C].

        Args:
            features: [..., C], of any norm.
        """
        adapted: Tensor = features + self.up(self.down(features))
        return adapted
