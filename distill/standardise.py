"""Teachers' embeddings at one scale, so that none is louder for its units."""

from __future__ import annotations

import torch
from torch import Tensor, nn

EPSILON = 1e-6


class RunningStandardiser(nn.Module):
    """Mean 0 and deviation 1 of every dimension, by running estimates.

    Source: AM-RADIO (Ranzinger et al., CVPR 2024) standardises so; the estimates are those of
    BatchNorm with a cumulative mean over the first batches.

    Args:
        dim: Width D of the embeddings.
        momentum: Share of the newest batch once the cumulative mean has caught up.
    """

    mean: Tensor
    square: Tensor
    batches: Tensor

    def __init__(self, *, dim: int, momentum: float = 0.01) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("square", torch.ones(dim))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def fit(self, rows: Tensor) -> None:
        """Do nothing: the estimates come from the batches."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return standardised rows [B, D]; in training, the estimates take them in first."""
        if self.training and len(rows):
            self.batches += 1
            share = max(self.momentum, 1 / int(self.batches))
            self.mean += share * (rows.mean(0) - self.mean)
            self.square += share * (rows.square().mean(0) - self.square)
        deviation = (self.square - self.mean.square()).clamp(min=EPSILON).sqrt()
        return (rows - self.mean) / deviation


class PhiStandardiser(nn.Module):
    """PHI-S: rotated so that every dimension has the same variance, then one scale for all.

    Cosines of centred embeddings stay what they are, since a rotation and one scale keep them.

    Source: Ranzinger et al., PHI-S, 2024 (arXiv 2410.01680), section 3: H U^T (x - mean) / phi,
    phi^2 the mean eigenvalue of the covariance, H an orthogonal Hadamard matrix.

    Args:
        dim: Width D of the embeddings; ValueError where no Hadamard matrix of D is known here.
    """

    mean: Tensor
    rotation: Tensor

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("rotation", hadamard(dim) / dim**0.5)

    def fit(self, rows: Tensor) -> None:
        """Estimate mean, principal axes and scale from a sample of embeddings [N, D]."""
        wide = rows.double()
        self.mean.copy_(wide.mean(0))
        centred = wide - wide.mean(0)
        eigenvalues, axes = torch.linalg.eigh(centred.T @ centred / len(rows))
        scale = eigenvalues.clamp(min=0).mean().clamp(min=EPSILON).sqrt()
        dim = len(eigenvalues)
        self.rotation.copy_(hadamard(dim).double() / dim**0.5 @ axes.T / scale)

    def forward(self, rows: Tensor) -> Tensor:
        """Return standardised rows [B, D]."""
        return (rows - self.mean) @ self.rotation.T


def hadamard(order: int) -> Tensor:
    """Return a Hadamard matrix: entries +-1, H H' = order * I.

    Sylvester's doubling of a matrix of Paley's first or second kind over a prime field; that makes
    all common widths of embeddings (384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, ...).

    Raises:
        ValueError: When the order is not made so.
    """
    doublings, core = 0, order
    while True:
        found = _paley(core)
        if found is not None:
            break
        if core % 2:
            raise ValueError(
                f"no Hadamard matrix of order {order} is known here, which PHI-S needs; "
                "choose distill/standardise=running"
            )
        doublings, core = doublings + 1, core // 2
    for _ in range(doublings):
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    return found


def _paley(order: int) -> Tensor | None:
    if order in (1, 2):
        return torch.tensor([[1.0, 1.0], [1.0, -1.0]])[:order, :order]
    if order % 4:
        return None
    if _is_prime(order - 1):  # first kind, q = 3 mod 4
        skew = torch.zeros(order, order)
        skew[0, 1:], skew[1:, 0] = 1, -1
        skew[1:, 1:] = _jacobsthal(order - 1)
        return skew + torch.eye(order)
    q = order // 2 - 1
    if q % 4 == 1 and _is_prime(q):  # second kind
        symmetric = torch.ones(q + 1, q + 1)
        symmetric[0, 0] = 0
        symmetric[1:, 1:] = _jacobsthal(q)
        blocks = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        diagonal = torch.tensor([[1.0, -1.0], [-1.0, -1.0]])
        return torch.kron(symmetric, blocks) + torch.kron(torch.eye(q + 1), diagonal)
    return None


def _jacobsthal(q: int) -> Tensor:
    """Q[a, b] = 1 where a - b is a non-zero square modulo q, 0 on the diagonal, else -1."""
    squares = {x * x % q for x in range(1, q)}
    residue = torch.tensor([0.0] + [1.0 if x in squares else -1.0 for x in range(1, q)])
    index = torch.arange(q)
    return residue[(index[:, None] - index[None]) % q]


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % divisor for divisor in range(2, int(n**0.5) + 1))
