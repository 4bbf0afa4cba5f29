"""The two losses of the diffusion prior.

Source: SPEC T3.
"""

from __future__ import annotations

from torch import Tensor


def retrieval_consistency(key: Tensor, augmented: Tensor) -> Tensor:
    """Return the mean over the batch of ||k - k~||_2, a scalar in [0, 2] for unit vectors.

    Args:
        key: k [B, D], unit norm.
        augmented: k~ [B, D], unit norm.
    """
    # Where both are equal, the gradient of torch's norm is zero, not NaN.
    return (key - augmented).norm(dim=-1).mean()


def noise_error(noise: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean over the batch of ||e - e_hat||_1, a scalar that grows with the width D.

    Args:
        noise: e [B, D].
        predicted: e_hat [B, D].
    """
    return (noise - predicted).abs().sum(-1).mean()
