"""Affine maps from one embedding space into another: three ways to fit them, and an aligner.

Rows that belong together are pairs; a map is ``a W + bias`` with W [d_a, d_b], and its bias holds
the centring of both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aligners.mm_align import Head

TEMPERATURE = 0.07  # one for both modalities; SPEC K3


class Affine(NamedTuple):
    """``a W + bias``."""

    weight: Tensor  # W [d_a, d_b]
    bias: Tensor  # [d_b]


def least_squares(a: Tensor, b: Tensor, ridge: float = 0.0) -> Affine:
    """Return the map with the least squared error over the pairs.

    Args:
        a: Rows [N, d_a].
        b: Their partners [N, d_b].
        ridge: Penalty on the squares of W, in units of the mean variance of the entries of ``a``;
            0 takes more pairs than ``a`` has entries.

    Raises:
        ValueError: For rows that are no pairs, not finite or too few, and a negative ridge.
    """
    if not ridge >= 0:
        raise ValueError(f"ridge={ridge}: expected at least 0")
    _check_pairs(a, b, least=2 if ridge else a.shape[-1] + 1)
    centred_a, centred_b = (rows.double() - rows.double().mean(0) for rows in (a, b))
    covariance = centred_a.T @ centred_a / len(a)
    penalty = ridge * covariance.trace() / len(covariance)
    # Not an inverse: entries of ``a`` that never vary leave a singular matrix, and get no weight.
    matrix = covariance + penalty * torch.eye(len(covariance), device=a.device)
    weight = torch.linalg.pinv(matrix, hermitian=True) @ (centred_a.T @ centred_b / len(a))
    return _with_bias(a, b, weight)


def procrustes(a: Tensor, b: Tensor) -> Affine:
    """Return the map that turns ``a`` onto ``b`` and scales it: W is semi-orthogonal times a scale.

    Angles and ratios of distances are kept where d_a <= d_b. Where d_a > d_b the map is the best
    rotation onto ``b`` padded with zeros, its last columns left out.

    Args:
        a: Rows [N, d_a].
        b: Their partners [N, d_b].

    Raises:
        ValueError: For rows that are no pairs, not finite, or too few for one answer.

    Source: Schönemann, A generalized solution of the orthogonal Procrustes problem, Psychometrika
    1966; the scale is the least-squares one for the rotation found.
    """
    _check_pairs(a, b, least=min(a.shape[-1], b.shape[-1]) + 1)
    centred_a, centred_b = (rows.double() - rows.double().mean(0) for rows in (a, b))
    left, strength, right = torch.linalg.svd(centred_a.T @ centred_b, full_matrices=False)
    rotation = left @ right
    size = (centred_a @ rotation).square().sum()
    if not size > 0:
        raise ValueError("all rows of a are equal; give pairs that differ")
    return _with_bias(a, b, rotation * (strength.sum() / size))


def neighbourhood_loss(mapped: Tensor, b: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return how far the neighbours of mapped rows among ``b`` are from those of their partners.

    The neighbourhood of a row is the softmax of its cosines to all rows of ``b``, itself included,
    over the temperature; the loss is the mean divergence KL(of ``b`` among ``b`` || of mapped rows
    among ``b``), and the same from ``b`` to the mapped rows, halved. It is 0 where both agree, and
    equal rows of ``b`` (one caption, two pictures) share their weight.

    Args:
        mapped: Rows [N, d_b], of any norm.
        b: Their partners [N, d_b].
        temperature: Of both softmaxes.

    Raises:
        ValueError: When the two differ in shape, or for a temperature that is not positive.

    Source: Fang et al., SEED, ICLR 2021: similarities to the teacher's instances, the own one
    among them. Here the batch takes the place of their queue, and both directions are kept.
    """
    if mapped.shape != b.shape:
        raise ValueError(
            f"mapped rows are {tuple(mapped.shape)}, their partners {tuple(b.shape)}; "
            "give one mapped row for each, as wide"
        )
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: expected a positive number")
    mapped, b = F.normalize(mapped, dim=-1), F.normalize(b, dim=-1)
    right = F.log_softmax(b @ b.T / temperature, dim=1)  # [N, N]
    cosines = mapped @ b.T / temperature
    there, back = (
        F.kl_div(F.log_softmax(found, dim=1), right, reduction="batchmean", log_target=True)
        for found in (cosines, cosines.T)
    )
    return (there + back) / 2


def neighbourhood(
    a: Tensor,
    b: Tensor,
    *,
    ridge: float = 1.0,
    temperature: float = TEMPERATURE,
    steps: int = 300,
    batch_size: int = 512,
    learning_rate: float = 1e-2,
    dropout: float = 0.5,
    seed: int = 0,
) -> Affine:
    """Return the map with the least ``neighbourhood_loss``, by gradient from ``least_squares``.

    Args:
        a: Rows [N, d_a].
        b: Their partners [N, d_b].
        ridge: Of the start.
        temperature: Of the loss.
        steps: Batches.
        batch_size: Pairs a batch, among which the neighbours are.
        learning_rate: Peak rate.
        dropout: Share of the entries of ``a`` that is left out; else the map learns its pairs by
            heart.
        seed: Of batches and dropout.

    Raises:
        ValueError: As ``least_squares`` and ``neighbourhood_loss``.
    """
    start = least_squares(a, b, ridge)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        weight, bias = (tensor.clone().requires_grad_() for tensor in start)
        optimizer = torch.optim.Adam([weight, bias], lr=learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        middle = a.mean(0)
        for _ in range(steps):
            chosen = torch.randperm(len(a))[:batch_size].to(a.device)
            # Around the mean: an entry left out says nothing, rather than 0.
            kept = F.dropout(a[chosen] - middle, dropout) + middle
            loss = neighbourhood_loss(kept @ weight + bias, b[chosen], temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return Affine(weight.detach(), bias.detach())


FITS: dict[str, Callable[..., Affine]] = {
    "least_squares": least_squares,
    "procrustes": procrustes,
    "neighbourhood": neighbourhood,
}


class AffineMap(nn.Module):
    """An affine map as a module; a random semi-orthogonal one until it is fitted or trained.

    Args:
        in_dim: Width d_a of the rows that are mapped.
        out_dim: Width d_b of the space that they are mapped into.

    Source: SPEC T2.
    """

    def __init__(self, *, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(in_dim, out_dim)))
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def forward(self, a: Tensor) -> Tensor:
        """Return rows [..., out_dim] of rows [..., in_dim]."""
        return a @ self.weight + self.bias

    def fit(self, a: Tensor, b: Tensor, method: str = "least_squares", **options: float) -> Self:
        """Take the map that ``FITS[method]`` finds, and return this module.

        Args:
            a: Rows [N, in_dim].
            b: Their partners [N, out_dim].
            method: A key of ``FITS``.
            options: Those of the method.

        Raises:
            ValueError: For an unknown method, other widths, and pairs that the method refuses.
        """
        if method not in FITS:
            raise ValueError(f"method={method!r}: expected one of {', '.join(FITS)}")
        for name, rows, width in (("a", a, len(self.weight)), ("b", b, len(self.bias))):
            if rows.shape[-1] != width:
                raise ValueError(
                    f"{name} is {rows.shape[-1]} wide, this map takes {width}; "
                    f"make it AffineMap(in_dim={a.shape[-1]}, out_dim={b.shape[-1]})"
                )
        with torch.no_grad():
            found = FITS[method](a, b, **options)
            self.weight.copy_(found.weight)
            self.bias.copy_(found.bias)
        return self


class AffineAlign(Head):
    """Aligner that maps one modality into the space of another, which stays as it is.

    Args:
        input_dims: Width of each modality's embedding, by name: those of source and target.
        source: The modality that is mapped.
        target: The modality whose space is the common one.
        key_dim: Width D of the model's keys; it must be the target's, and is only checked.

    Raises:
        ValueError: When the modalities are others, or ``key_dim`` is not the target's width.

    Source: SPEC T2.
    """

    def __init__(
        self,
        *,
        input_dims: Mapping[str, int],
        source: str = "image",
        target: str = "text",
        key_dim: int,
    ) -> None:
        super().__init__(input_dims)
        if source == target or set(input_dims) != {source, target}:
            raise ValueError(
                f"input_dims has {', '.join(input_dims)}, source is {source}, target {target}; "
                "an affine map takes two modalities, give the widths of both"
            )
        width = input_dims[target]
        if key_dim != width:
            raise ValueError(
                f"key_dim={key_dim}, but an affine map leads into the space of {target}, which is "
                f"{width} wide; give key_dim={width}"
            )
        self.source, self.target = source, target
        self.map = AffineMap(in_dim=input_dims[source], out_dim=width)

    def project(self, name: str, embedding: Tensor) -> Tensor:
        """Return one modality's embeddings [B, input_dims[name]] as unit vectors [B, D]."""
        unit = F.normalize(embedding, dim=-1)
        return F.normalize(self.map(unit), dim=-1) if name == self.source else unit


def _with_bias(a: Tensor, b: Tensor, weight: Tensor) -> Affine:
    bias = b.double().mean(0) - a.double().mean(0) @ weight
    return Affine(weight.to(a.dtype), bias.to(a.dtype))


def _check_pairs(a: Tensor, b: Tensor, least: int) -> None:
    for name, rows in (("a", a), ("b", b)):
        if rows.ndim != 2 or not rows.shape[1]:
            raise ValueError(f"{name} has shape {tuple(rows.shape)}; give a matrix, a row a pair")
        wrong = ~torch.isfinite(rows).all(1)
        if wrong.any():
            at = int(wrong.nonzero()[0])
            raise ValueError(f"{name} row {at} is not finite; leave such pairs out")
    if len(a) != len(b):
        raise ValueError(f"a has {len(a)} rows, b {len(b)}; row i of both is one pair")
    if len(a) < least:
        mend = "give more" if least == 2 else "give more, or take least_squares with a ridge"
        raise ValueError(
            f"{len(a)} pairs of {a.shape[1]} and {b.shape[1]} entries, at least {least} are "
            f"needed; {mend}"
        )
