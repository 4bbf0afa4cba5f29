"""What a student copies of its teachers; tensors in, scalars out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from distill.teacher import TeacherError


def similarity_shares(image: Tensor, text: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log softmax of the cosines over texts [U, V] and over images [V, U].

    Args:
        image: [U, D].
        text: [V, D].
        temperature: Divides the cosines.
    """
    cosine = F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).T / temperature
    return cosine.log_softmax(1), cosine.T.log_softmax(1)


def affinity_kl(
    student: tuple[Tensor, Tensor],
    teachers: Sequence[tuple[Tensor, Tensor, float]],
    weights: Tensor,
    *,
    student_temperature: float,
    temperature: float,
) -> Tensor:
    """Return KL from the teachers' mean similarities of pictures and texts to the student's.

    The teachers' shares are averaged after their softmax, so that no teacher's scale of cosines
    outweighs another's; both directions, mean over rows, times the squared temperature.

    Args:
        student: Its image [U, D] and text [V, D] vectors.
        teachers: Image [U, Dk], text [V, Dk] and own temperature of each with both modalities.
        weights: [T], summing to 1.
        student_temperature: Of the student's cosines.
        temperature: Softens both sides (SPEC T4: 2.0).

    Raises:
        TeacherError: When there is no teacher with both, or no picture or no text.

    Source: Hinton et al., 2015 (the squared temperature); SPEC T4.
    """
    if not teachers:
        raise TeacherError(
            "no teacher has both pictures and texts, which the affinity objective compares; "
            "add one, or leave the objective out: ~distill.objectives.affinity"
        )
    for modality, rows in zip(("picture", "text"), student, strict=True):
        if not len(rows):
            raise TeacherError(
                f"a batch without a {modality}: the affinity objective compares pictures and "
                "texts; choose data with both, or leave it out: ~distill.objectives.affinity"
            )
    wanted = [similarity_shares(i, t, own * temperature) for i, t, own in teachers]
    found = similarity_shares(*student, student_temperature * temperature)
    log_weights = weights.clamp(min=torch.finfo(weights.dtype).tiny).log()
    terms = []
    for direction in range(2):
        stacked = torch.stack([shares[direction] for shares in wanted])  # (T, rows, columns)
        mixed = (stacked + log_weights[:, None, None]).logsumexp(0)
        terms.append(F.kl_div(found[direction], mixed, reduction="batchmean", log_target=True))
    return temperature**2 * torch.stack(terms).mean()


def feature_loss(predicted: Tensor, standardised: Tensor) -> Tensor:
    """Return (1 - cosine) + smooth L1 of projected and standardised embeddings [B, D], a mean.

    Source: UNIC (Sariyildiz et al., ECCV 2024), eq. 1; the standardised target as in RADIO.
    """
    cosine = F.cosine_similarity(predicted, standardised, dim=-1)
    return (1 - cosine).mean() + F.smooth_l1_loss(predicted, standardised)


def text_contrast(predicted: Tensor, text: Tensor, pairs: Tensor, temperature: float) -> Tensor:
    """Return -log p(own texts | all texts of the batch) of projected pictures, mean over them.

    Args:
        predicted: The student's pictures in the teacher's text space [U, D].
        text: The teacher's texts [V, D].
        pairs: bool [U, V], true where the text describes the picture.
        temperature: Divides the cosines.

    Raises:
        TeacherError: When no text of the batch describes a picture.

    Source: InfoNCE against frozen texts, as CLIP-KD's interactive contrast (Yang et al., CVPR
    2024) and LiT (Zhai et al., CVPR 2022) do.
    """
    paired = pairs.any(1)
    if not paired.any():
        raise TeacherError(
            "no text of the batch describes a picture, which the text_contrast objective needs; "
            "choose data with captions, or leave it out: ~distill.objectives.text_contrast"
        )
    log_share, _ = similarity_shares(predicted[paired], text, temperature)
    own = pairs[paired]
    return -(log_share.masked_fill(~own, 0).sum(1) / own.sum(1)).mean()
