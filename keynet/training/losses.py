"""Losses of a key model; each takes the output and the batch and returns a scalar."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keynet.types import KeyOutput, TrainingBatch

TEMPERATURE = 0.07  # SPEC K3: one temperature for both modalities
VECTORS = ("key", "image", "text")
LABELS = ("group", "instance", "original", "intent")


def sign_straight_through(logits: Tensor) -> Tensor:
    """Return +-1 codes whose gradient is that of ``tanh(logits)``; zero counts as +1."""
    soft = torch.tanh(logits)
    return soft + (torch.where(logits >= 0, 1.0, -1.0) - soft).detach()


def supervised_contrastive(
    unit: Tensor, group: Tensor, temperature: float, left_out: Tensor | None = None
) -> Tensor:
    """Return the mean over rows with positives of -log p(positive | all others).

    Args:
        unit: [B, D], unit norm.
        group: int64 [B]; equal group = positive.
        temperature: Divides the cosines.
        left_out: bool [B, B], pairs that are neither positive nor negative.

    Source: Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, eq. 2 (L_out).
    """
    absent = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    if left_out is not None:
        absent |= left_out
    similarity = (unit @ unit.T / temperature).masked_fill(absent, float("-inf"))
    positive = (group[:, None] == group[None]) & ~absent
    log_share = similarity - similarity.logsumexp(1, keepdim=True)
    positives = positive.sum(1)
    per_row = -log_share.masked_fill(~positive, 0).sum(1) / positives.clamp(min=1)
    loss: Tensor = (per_row * (positives > 0)).sum() / (positives > 0).sum().clamp(min=1)
    return loss


def prefixes(bits: int) -> list[int]:
    """Return the code lengths that are usable alone: 64, 128, ... up to ``bits``."""
    return [length for length in (64, 128, 256, 512) if length <= bits]


def across_scopes(batch: TrainingBatch) -> Tensor:
    """Return which pairs [B, B] tell nothing: of two scopes, with one question or one group.

    A key does not see the scope, and what one scope says of two pictures and a question need not
    hold in another: its model, its tenant or its language answers otherwise. Different questions
    that no scope holds for one are not equivalent anywhere, and stay negatives.
    """
    one = (batch.intent[:, None] == batch.intent[None]) | (batch.group[:, None] == batch.group)
    return one & (batch.scope[:, None] != batch.scope[None])


def other_pictures(batch: TrainingBatch) -> Tensor:
    """Return which pairs [B, B] show the same thing in two pictures, as two vendors' drawings.

    They are neither positive nor negative where pictures are told apart. Pulled together, they
    teach that what differs between two drawings is no difference: look-alikes then meet, too.
    """
    same = batch.entity[:, None] == batch.entity[None]
    return same & (batch.original[:, None] != batch.original[None])


def instances(batch: TrainingBatch) -> Tensor:
    """Return numbers [B] that are equal for the same question about the same picture.

    A request that the batch does not hold in another encoding stands alone: where pictures never
    come again, as in easy-VQA, telling them apart would only cost hits.
    """
    pairs = torch.stack([batch.group, batch.original])
    numbers: Tensor = torch.unique(pairs, dim=1, return_inverse=True)[1]
    same = numbers[:, None] == numbers[None]
    again = (same & (batch.image_index[:, None] != batch.image_index[None])).any(1)
    alone = len(numbers) + torch.arange(len(numbers), device=numbers.device)
    return torch.where(again, numbers, alone)


class Contrast(nn.Module):
    """Supervised contrast of one vector of the output over one label of the batch.

    * ``key`` over ``group``: equivalent requests meet.
    * ``key`` over ``instance`` (see ``instances``) grades that: the same question about the same
      picture comes before the same answer about another one. Where a model cannot tell an answer
      for pictures it was not trained on, a threshold can still serve the pictures it has seen.
    * ``image`` over ``original``: any question can be answered from where a picture's vector lies.
    * ``text`` over ``intent``: a question in any phrasing.

    ``group`` and ``instance`` hold within a scope: see ``across_scopes``. Over ``instance`` and
    ``original``, other pictures of the same thing are left out: see ``other_pictures``.

    Args:
        vector: ``key``, ``image`` or ``text``.
        over: ``group``, ``instance``, ``original`` or ``intent``; requests whose label is -1 are
            left out.
        temperature: Divides the cosines.
    """

    def __init__(self, *, vector: str, over: str, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        for name, value, known in (("vector", vector, VECTORS), ("over", over, LABELS)):
            if value not in known:
                raise ValueError(f"{name}={value!r}: expected one of {', '.join(known)}")
        self.vector, self.over, self.temperature = vector, over, temperature

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> Tensor:
        """Return the loss of a batch."""
        label = instances(batch) if self.over == "instance" else getattr(batch, self.over)
        rows = (label >= 0).nonzero().squeeze(1)
        unit = getattr(output, self.vector)
        left_out = torch.zeros(len(label), len(label), dtype=torch.bool, device=label.device)
        if self.over in ("group", "instance"):
            left_out |= across_scopes(batch)
        if self.over in ("instance", "original"):
            left_out |= other_pictures(batch)
        left_out = left_out[rows][:, rows]
        return supervised_contrastive(unit[rows], label[rows], self.temperature, left_out)


class CaptionContrast(nn.Module):
    """Symmetric contrast of pictures and the captions that describe them; zero without captions.

    Captions of one entity are all right, as are all its pictures.

    Args:
        temperature: Divides the cosines.

    Source: CLIP (Radford et al., 2021) with several positives as in ``supervised_contrastive``.
    """

    def __init__(self, *, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> Tensor:
        """Return the loss of a batch."""
        rows = batch.described.nonzero().squeeze(1)
        if len(rows) == 0:
            return output.image.sum() * 0
        logits = output.image[rows] @ output.text[rows].T / self.temperature
        entity = batch.entity[rows]
        same = (entity[:, None] == entity[None]).to(logits)
        right = same / same.sum(1, keepdim=True)
        return (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2


class CodeContrast(nn.Module):
    """Contrast of +-1 codes over groups and over instances, mean over the nested prefixes.

    Args:
        temperature: Divides the cosines.
        instance_weight: Weight of the instances beside the groups.
    """

    def __init__(self, *, temperature: float = TEMPERATURE, instance_weight: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.instance_weight = instance_weight

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> Tensor:
        """Return the loss of a batch."""
        code = sign_straight_through(output.logits)
        instance, left_out = instances(batch), across_scopes(batch)
        others = left_out | other_pictures(batch)
        losses = []
        for length in prefixes(code.shape[1]):
            unit = F.normalize(code[:, :length], dim=-1)
            by_group = supervised_contrastive(unit, batch.group, self.temperature, left_out)
            by_instance = supervised_contrastive(unit, instance, self.temperature, others)
            losses.append(by_group + self.instance_weight * by_instance)
        return torch.stack(losses).mean()


class CodeAffinity(nn.Module):
    """KL from the similarities of keys to those of their codes, mean over the nested prefixes."""

    def __init__(self, *, temperature: float = TEMPERATURE) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> Tensor:
        """Return the loss of a batch; no gradient flows through the keys' own similarities."""
        code = sign_straight_through(output.logits)
        others = ~torch.eye(len(code), dtype=torch.bool, device=code.device)
        rows = len(code), len(code) - 1
        keys = output.key.detach()
        wanted = ((keys @ keys.T)[others].view(rows) / self.temperature).log_softmax(1)
        losses = []
        for length in prefixes(code.shape[1]):
            unit = F.normalize(code[:, :length], dim=-1)
            found = ((unit @ unit.T)[others].view(rows) / self.temperature).log_softmax(1)
            losses.append(F.kl_div(found, wanted, reduction="batchmean", log_target=True))
        return torch.stack(losses).mean()


class Decorrelation(nn.Module):
    """Mean square of the off-diagonal correlations of code bits: |H'H/N - I|^2 per pair."""

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> Tensor:
        """Return the loss of a batch."""
        soft = torch.tanh(output.logits)
        correlation = soft.T @ soft / len(soft)
        off_diagonal = correlation - torch.diag(torch.diagonal(correlation))
        return off_diagonal.square().sum() / (len(correlation) * (len(correlation) - 1))


class Consistency(nn.Module):
    """1 - cosine between keys of one question in one scope about a picture's encodings."""

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> Tensor:
        """Return the loss of a batch; zero without pairs."""
        same = batch.original[:, None] == batch.original[None]
        same &= batch.group[:, None] == batch.group[None]
        same &= batch.scope[:, None] == batch.scope[None]
        same &= ~torch.eye(len(same), dtype=torch.bool, device=same.device)
        same &= (batch.original >= 0)[:, None]
        cosine = output.key @ output.key.T
        return ((1 - cosine) * same).sum() / same.sum().clamp(min=1)
