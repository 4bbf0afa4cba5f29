"""Contrast of all pictures of a batch under one question at a time."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keynet.training.losses import (
    TEMPERATURE,
    other_pictures,
    sign_straight_through,
    supervised_contrastive,
)
from keynet.types import KeyOutput, TrainingBatch

TINY = 1e-3  # of a temperature: below, float32 overflows


class CrossedContrast(nn.Module):
    """Supervised contrast over pictures of their keys with the same question.

    A cache confuses look-alikes about which the same is asked, and a batch holds few such requests.
    Its vectors are there, so that asking a question about every picture costs the fusion alone;
    and which keys must meet is known without an answer: those of one picture, in whatever encoding
    and phrasing. Each question is asked in two. Other pictures of the same thing are left out, as
    ``losses.other_pictures`` says. Where no picture comes in two encodings nothing is
    crossed, for the reason given in ``losses.instances``; across scopes neither.

    Args:
        questions: Most questions of a batch, the first that it has two phrasings of.
        code_weight: Weight of the same contrast of +-1 codes beside that of keys.
        temperature: Divides the cosines.

    Raises:
        ValueError: Values of another type or out of range.
    """

    def __init__(
        self, *, questions: int, code_weight: float, temperature: float = TEMPERATURE
    ) -> None:
        super().__init__()
        if type(questions) is not int or questions < 1:
            raise ValueError(
                f"crossed_contrast: questions={questions!r}: expected a whole number above 0; "
                "without this loss: loss=contrast_and_hash"
            )
        for name, value, least in (
            ("code_weight", code_weight, 0),
            ("temperature", temperature, TINY),
        ):
            if type(value) not in (int, float) or not least <= value < float("inf"):
                raise ValueError(f"crossed_contrast: {name}={value!r}: expected {least} or more")
        self.questions, self.code_weight = questions, code_weight
        self.temperature = temperature

    def forward(self, output: KeyOutput, batch: TrainingBatch, model: Any) -> Tensor:
        """Return the mean over questions; zero where nothing can be crossed.

        Args:
            output: Of the whole batch.
            batch: The batch.
            model: The key model, whose fusion and taught matrix make the keys and codes.
        """
        matrix, losses = model.taught_matrix(), []
        for pictures, texts in crossed(batch, self.questions):
            key = model.fusion(
                output.image[pictures].repeat(len(texts), 1),
                output.text[texts].repeat_interleave(len(pictures), 0),
            )
            code = F.normalize(sign_straight_through(F.linear(key, *matrix)), dim=-1)
            rows = pictures.repeat(len(texts))
            original, left_out = batch.original[rows], other_pictures(batch)[rows][:, rows]
            losses.append(
                supervised_contrastive(key, original, self.temperature, left_out)
                + self.code_weight
                * supervised_contrastive(code, original, self.temperature, left_out)
            )
        return torch.stack(losses).mean() if losses else output.key.sum() * 0


def crossed(batch: TrainingBatch, questions: int) -> list[tuple[Tensor, Tensor]]:
    """Return, for each question, a row of the batch for each picture [P] and two phrasings [2]."""
    columns = (batch.scope, batch.original, batch.intent, batch.image_index, batch.text_index)
    pictures: dict[int, dict[int, int]] = {}  # by scope: a row of each picture
    asked: dict[tuple[int, int], dict[int, int]] = {}  # by scope and intent: a row of each text
    rows = zip(*(column.tolist() for column in columns), batch.described.tolist(), strict=True)
    for row, (scope, original, intent, image, text, described) in enumerate(rows):
        if original >= 0:
            pictures.setdefault(scope, {}).setdefault(image, row)
        if intent >= 0 and not described:
            asked.setdefault((scope, intent), {}).setdefault(text, row)
    found = []
    for (scope, _), texts in asked.items():
        shown = torch.tensor(list(pictures.get(scope, {}).values()), dtype=torch.long)
        if len(texts) > 1 and len(set(batch.original[shown].tolist())) < len(shown):
            found.append((shown, torch.tensor(list(texts.values())[:2])))
    return found[:questions]
