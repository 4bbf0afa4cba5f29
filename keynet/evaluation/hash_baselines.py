"""Hashes of stored embeddings that a learned code must beat, each fitted on training embeddings.

What is fitted maps embeddings [N, D] to packed codes [N, bits/8]. Lengths below 64 are for
comparison with the literature; no key has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]
Hash = Callable[[Floats], Codes]

BITS = (16, 32, 64, 128)
BATCH = 256  # of OrthoHash, as its authors'
WEIGHT_DECAY = 5e-4  # theirs
DROP_AT, DROP = 0.8, 0.1  # their schedule: a tenth of the rate from 80 % of the training on


def signs(projected: NDArray[np.floating]) -> Codes:
    """Return codes [N, bits/8] of projections [N, bits]; zero is a one, as in every key."""
    return np.packbits(projected >= 0, axis=1)


def pca_sign(train: Floats, bits: int) -> Hash:
    """Signs of the projections onto the first principal axes.

    Args:
        train: Embeddings [N, D].
        bits: 16, 32, 64 or 128.

    Raises:
        ValueError: When there are fewer axes than bits, or embeddings are not finite.
    """
    mean, axes = _principal_axes(train, bits)
    return lambda rows: signs((_checked(rows, len(mean)) - mean) @ axes)


def itq(train: Floats, bits: int, iterations: int = 50, *, seed: int) -> Hash:
    """Principal axes, rotated so that signs lose least: iterative quantisation.

    Args:
        train: Embeddings [N, D].
        bits: 16, 32, 64 or 128.
        iterations: Turns of code and rotation; 50, as its authors'.
        seed: Of the first rotation.

    Raises:
        ValueError: As ``pca_sign``, or when there is no iteration.

    Source: Gong and Lazebnik, Iterative Quantization, CVPR 2011, section 2.2.
    """
    if iterations < 1:
        raise ValueError(f"iterations={iterations}: expected at least 1")
    mean, axes = _principal_axes(train, bits)
    projected = (train - mean) @ axes
    start = np.random.default_rng(seed).standard_normal((bits, bits))
    rotation: Floats = np.linalg.qr(start)[0].astype(np.float32)
    for _ in range(iterations):
        code = np.where(projected @ rotation >= 0, np.float32(1), np.float32(-1))
        # The rotation that brings V nearest to its code B: with B'V = S D T', it is T S'.
        left, _, right = np.linalg.svd(code.T @ projected)
        rotation = right.T @ left.T
    turned = axes @ rotation
    return lambda rows: signs((_checked(rows, len(mean)) - mean) @ turned)


def orthohash(
    train: Floats,
    labels: NDArray[np.integer],
    bits: int,
    *,
    seed: int,
    epochs: int = 20,
    learning_rate: float = 1e-2,
    margin: float = 0.2,
    scale: float = 8.0,
) -> Hash:
    """A linear layer and BatchNorm, drawn by cosine to a fixed random code of each class.

    Codes of classes are Bernoulli(.5), margin, scale, batch of 256, Adam with weight decay of 5e-4
    and the drop of the rate are its authors' defaults. Theirs trains AlexNet for 100 epochs at a
    rate of 1e-4; a linear layer over embeddings takes 1e-2 and 20.

    Args:
        train: Embeddings [N, D]; centred and scaled to unit variance on average.
        labels: Class of each [N].
        bits: 16, 32, 64 or 128.
        seed: Of class codes, weights and batches.
        epochs: Passes over ``train``.
        learning_rate: Of Adam.
        margin: Subtracted from the cosine to the own class's code.
        scale: Of the cosines in the softmax.

    Raises:
        ValueError: When there is one class only, fewer rows than a batch needs, or embeddings are
            not finite.

    Source: Hoe et al., One Loss for All: Deep Hashing with a Single Cosine Similarity based
    Learning Objective (OrthoHash), NeurIPS 2021, and the authors' implementation for its settings.
    """
    train = _checked_train(train, bits)
    if len(labels) != len(train):
        raise ValueError(f"{len(labels)} labels for {len(train)} embeddings; give one each")
    names, target = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"{len(names)} class among the labels; OrthoHash needs at least 2")
    mean = train.mean(0)
    spread = float((train - mean).std()) or 1.0
    generator = torch.Generator().manual_seed(seed)
    rows = torch.from_numpy((train - mean) / np.float32(spread))
    head = LinearHash(train.shape[1], bits, generator)
    drawn = torch.randint(0, 2, (len(names), bits), generator=generator) * 2 - 1
    class_codes = F.normalize(drawn.float(), dim=1)
    wanted = torch.from_numpy(target.astype(np.int64))

    def loss(at: Tensor) -> Tensor:
        cosine = F.normalize(head(rows[at]), dim=1) @ class_codes.T
        own = F.one_hot(wanted[at], len(names)) * margin
        return F.cross_entropy(scale * (cosine - own), wanted[at])

    fit_linear(head, loss, shuffled_batches(len(rows), epochs, generator), learning_rate)
    return lambda given: _hashed(head, (_checked(given, len(mean)) - mean) / np.float32(spread))


class LinearHash(nn.Module):
    """A linear layer and BatchNorm: embeddings [N, D] to logits [N, bits].

    Args:
        dim: D.
        bits: Of the code.
        generator: Of the weights.
    """

    def __init__(self, dim: int, bits: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, bits, bias=False)
        nn.init.normal_(self.linear.weight, std=dim**-0.5, generator=generator)
        self.norm = nn.BatchNorm1d(bits, affine=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.norm(self.linear(rows))
        return logits


def shuffled_batches(count: int, epochs: int, generator: torch.Generator) -> list[Tensor]:
    """Return the rows of each batch, over all epochs; what does not fill a batch is left out.

    Args:
        count: Number of rows.
        epochs: Passes over them.
        generator: Of the order.

    Raises:
        ValueError: When there are fewer than two rows, or no pass.
    """
    if count < 2 or epochs < 1:
        raise ValueError(f"{count} rows, {epochs} epochs: expected at least 2 and 1")
    size = min(BATCH, count)
    return [
        order[first : first + size]
        for order in (torch.randperm(count, generator=generator) for _ in range(epochs))
        for first in range(0, count - size + 1, size)
    ]


def fit_linear(
    head: nn.Module,
    loss: Callable[[Tensor], Tensor],
    batches: Sequence[Tensor],
    learning_rate: float,
) -> None:
    """Train a head over stored rows; left in evaluation mode.

    Args:
        head: What is trained.
        loss: Of a batch, by the numbers of its rows int64 [B].
        batches: Those numbers, one step each.
        learning_rate: Of Adam, a tenth of it in the last fifth of the steps.
    """
    optimizer = torch.optim.Adam(
        head.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY, foreach=True
    )
    head.train()
    for step, at in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (DROP if step >= DROP_AT * len(batches) else 1.0)
        optimizer.zero_grad()
        loss(at).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    head.eval()


@torch.no_grad()
def _hashed(head: LinearHash, rows: Floats) -> Codes:
    return signs(head(torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32))).numpy())


def _principal_axes(train: Floats, bits: int) -> tuple[Floats, Floats]:
    """Mean [D] and the first axes [D, bits], most variance first."""
    train = _checked_train(train, bits)
    mean = train.mean(0)
    centred = (train - mean).astype(np.float64)
    variance, axes = np.linalg.eigh(centred.T @ centred)
    # Variances are squares of the singular values that this tolerance is for.
    least = variance[-1] * (len(variance) * np.finfo(np.float32).eps) ** 2
    rank = int((variance > least).sum())
    if bits > rank:
        raise ValueError(
            f"bits={bits}, but the {len(train)} embeddings of {train.shape[1]} numbers vary along "
            f"{rank} axes; ask fewer bits or fit on more rows"
        )
    return mean, axes[:, ::-1][:, :bits].astype(np.float32)


def _checked_train(train: Floats, bits: int) -> Floats:
    if bits not in BITS:
        raise ValueError(f"bits={bits}: expected one of {BITS}")
    rows = np.ascontiguousarray(train, dtype=np.float32)
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"embeddings have shape {rows.shape}; give a non-empty matrix [N, D]")
    return _checked(rows, rows.shape[1])


def _checked(rows: Floats, dim: int) -> Floats:
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise ValueError(f"embeddings have shape {rows.shape}, expected [N, {dim}] as fitted on")
    if not np.isfinite(rows).all():
        raise ValueError("embeddings contain NaN or infinity; encode those requests again")
    return rows
