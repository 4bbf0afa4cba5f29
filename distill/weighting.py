"""How much each teacher counts; every weighting returns weights that sum to 1."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from distill.teacher import Teacher, TeacherError
from keynet.types import Request

HELD_OUT = 2500  # pictures or texts by which a teacher's precision is measured


class Weighting(Protocol):
    """From what is known of the teachers to their weights.

    ``dispersion`` and ``precision`` are measured once, before training, and ``losses`` anew in
    every batch.
    """

    needs_precision: bool
    needs_losses: bool  # zeros are given otherwise

    def __call__(
        self, losses: Tensor, dispersion: Tensor, precision: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return weights [T].

        Args:
            losses: Of each teacher in this batch [T], detached.
            dispersion: Mean squared angle of its embeddings to their mean direction [T].
            precision: Its mean average precision on held-out requests [T]; NaN unless needed.
            generator: For those that draw.
        """
        ...


class Uniform:
    """All alike."""

    needs_precision = False
    needs_losses = False

    def __call__(
        self, losses: Tensor, dispersion: Tensor, precision: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return 1 / T each."""
        return torch.full_like(losses, 1 / len(losses))


class ByPrecision:
    """By mean average precision on held-out requests, normalised.

    Source: SPEC T4, which normalises the ranking. Its teachers' precision changes as their
    projectors learn; ours stay as they are, so that one measurement is enough.

    Args:
        by: ``value``, or ``rank``: the best of T teachers counts T, the worst 1.
    """

    needs_precision = True
    needs_losses = False

    def __init__(self, *, by: str = "value") -> None:
        if by not in ("value", "rank"):
            raise ValueError(f"distill.weighting.by={by!r}: expected value or rank")
        self.by = by

    def __call__(
        self, losses: Tensor, dispersion: Tensor, precision: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return precision, or its rank, over the sum."""
        counted = precision
        if self.by == "rank":
            counted = (precision[:, None] >= precision[None]).sum(1).to(losses.dtype)
        total = counted.sum()
        if not total > 0:
            raise TeacherError(
                f"the teachers' mean average precisions are {precision.tolist()}: nothing to weigh "
                "by; choose distill/weighting=uniform"
            )
        return counted.to(losses) / total.to(losses)


class ByDispersion:
    """By the inverse of how far a teacher's embeddings spread: loud ones are turned down.

    Source: the balanced summary loss of C-RADIOv4 (Ranzinger et al., 2026, arXiv 2601.17237).
    """

    needs_precision = False
    needs_losses = False

    def __call__(
        self, losses: Tensor, dispersion: Tensor, precision: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return 1 / dispersion over the sum."""
        inverse = 1 / dispersion.clamp(min=1e-6)
        return inverse.to(losses) / inverse.sum().to(losses)


class KeepWorst:
    """The teacher that is copied worst is kept, each other is dropped half of the time.

    Source: teacher dropping of UNIC (Sariyildiz et al., ECCV 2024), section 3.3.

    Args:
        drop: Probability with which another teacher is dropped in a batch.
    """

    needs_precision = False
    needs_losses = True

    def __init__(self, *, drop: float = 0.5) -> None:
        if not 0 <= drop < 1:
            raise ValueError(f"distill.weighting.drop={drop}: expected a share in [0, 1)")
        self.drop = drop

    def __call__(
        self, losses: Tensor, dispersion: Tensor, precision: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return equal weights over those that are kept."""
        kept = torch.rand(len(losses), generator=generator) >= self.drop
        kept[int(losses.argmax())] = True
        return kept.to(losses) / kept.sum()


def angular_dispersion(rows: Tensor) -> float:
    """Return the mean squared angle (radians) of rows [N, D] to their mean direction."""
    unit = F.normalize(rows.float(), dim=-1)
    cosine = (unit @ F.normalize(unit.mean(0), dim=0)).clamp(-1, 1)
    return float(torch.acos(cosine).square().mean())


def mean_average_precision(similarity: Tensor, relevant: Tensor) -> float:
    """Return the mean over queries of the average precision; NaN where none has anything relevant.

    Args:
        similarity: [Q, N]; equal values share the mean of their ranks, so that an encoder to which
            all is alike does not win by the order of the rows.
        relevant: bool [Q, N]; queries without a relevant row are left out.

    Source: expected ranks under ties, McSherry and Najork, ECIR 2008.
    """
    precisions = []
    for row, wanted in zip(similarity, relevant, strict=True):
        if wanted.any():
            own = row[wanted]
            precisions.append((_mean_rank(own, own) / _mean_rank(row, own)).mean())
    return float(torch.stack(precisions).mean()) if precisions else float("nan")


def _mean_rank(values: Tensor, of: Tensor) -> Tensor:
    """Rank 1 is the greatest of ``values``; equal ones share the mean of theirs."""
    ascending, asked = (-values).sort()[0], -of
    above = torch.searchsorted(ascending, asked)
    return (above + 1 + torch.searchsorted(ascending, asked, right=True)).float() / 2


def held_out_precision(teacher: Teacher, requests: Sequence[Request]) -> float:
    """Return a teacher's mean average precision in retrieval; NaN where nothing tells it.

    With both modalities, of a text its picture, by the entity; with one, of a picture or text
    another of the same entity or intent.
    """
    if len(teacher.modalities) == 2:
        both = [r for r in requests if r.image is not None and r.text is not None]
        image, first = _distinct(teacher, both, "image", "entity")
        text, label = _distinct(teacher, both, "text", "entity")
        similar = F.normalize(text, dim=-1) @ F.normalize(image, dim=-1).T
        return mean_average_precision(similar, label[:, None] == first[None])
    (modality,) = teacher.modalities
    of = "entity" if modality == "image" else "intent"
    present = [r for r in requests if getattr(r, modality) is not None]
    rows, label = _distinct(teacher, present, modality, of)
    same = (label[:, None] == label[None]) & ~torch.eye(len(label), dtype=torch.bool)
    similar = F.normalize(rows, dim=-1) @ F.normalize(rows, dim=-1).T
    return mean_average_precision(similar.fill_diagonal_(-2.0), same)


def _distinct(
    teacher: Teacher, requests: Sequence[Request], modality: str, of: str
) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the distinct contents [N, Dk] and digests of their labels [N]."""
    contents = {(_content(getattr(r, modality)), getattr(r, of)): r for r in requests}
    chosen = list(contents.values())[:HELD_OUT]
    alone = [Request(**{modality: getattr(r, modality)}) for r in chosen]
    rows = getattr(teacher.encode(alone), modality)
    labels = [int(sha256(str(getattr(r, of)).encode()).hexdigest()[:15], 16) for r in chosen]
    return rows, torch.tensor(labels)


def _content(value: Any) -> Hashable:
    return id(value) if isinstance(value, np.ndarray) else value


def scores_of(measured: Mapping[str, float]) -> Tensor:
    """Return [T] in the order of the teachers; TeacherError names one that has no score."""
    for name, value in measured.items():
        if value != value:
            raise TeacherError(
                f"teacher {name}: the held-out requests have no two pictures of one thing and no "
                "captions, so that its mean average precision is unknown; "
                "choose distill/weighting=uniform"
            )
    return torch.tensor(list(measured.values()))
