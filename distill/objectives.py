"""Objectives of distillation, as configuration names them: one class each over ``losses``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from distill.losses import affinity_kl, feature_loss, text_contrast
from distill.teacher import TeacherError


class Student(NamedTuple):
    """What the student makes of the distinct pictures and texts of a batch."""

    image: Tensor  # [U, D], unit norm
    text: Tensor  # [V, D], unit norm
    pairs: Tensor  # bool [U, V], true where the text describes the picture


class Lesson(NamedTuple):
    """What one teacher makes of them; None where it lacks the modality."""

    name: str
    temperature: float
    image: Tensor | None  # [U, Dk], as the teacher gives it
    text: Tensor | None  # [V, Dk]
    standard: dict[str, Tensor]  # the same, standardised, by modality
    predicted: dict[str, Tensor]  # the student's vectors through the projectors, by modality
    described: Tensor | None  # [U, Dk], the student's pictures in this teacher's text space


class Objective(Protocol):
    """One thing to copy."""

    def applies(self, lesson: Lesson) -> bool:
        """Return whether this teacher can teach it."""
        ...

    def __call__(self, student: Student, lessons: Sequence[Lesson], weights: Tensor) -> Tensor:
        """Return the loss over the teachers to which it applies; weights [T] sum to 1."""
        ...


class Affinity:
    """KL from the teachers' similarities of pictures and texts to the student's.

    Args:
        student_temperature: Of the student's cosines.
        temperature: Softens both sides.
    """

    def __init__(self, *, student_temperature: float, temperature: float) -> None:
        self.student_temperature, self.temperature = student_temperature, temperature

    def applies(self, lesson: Lesson) -> bool:
        """Return whether it has both modalities."""
        return lesson.image is not None and lesson.text is not None

    def __call__(self, student: Student, lessons: Sequence[Lesson], weights: Tensor) -> Tensor:
        """Return the loss."""
        both = [
            (lesson.image, lesson.text, lesson.temperature)
            for lesson in lessons
            if lesson.image is not None and lesson.text is not None
        ]
        return affinity_kl(
            (student.image, student.text),
            both,
            weights,
            student_temperature=self.student_temperature,
            temperature=self.temperature,
        )


class Feature:
    """The teachers' standardised embeddings themselves, through a projector each."""

    def applies(self, lesson: Lesson) -> bool:
        """Return true."""
        return True

    def __call__(self, student: Student, lessons: Sequence[Lesson], weights: Tensor) -> Tensor:
        """Return the weighted mean over teachers of the mean over their modalities."""
        each = []
        for lesson in lessons:
            parts = [
                feature_loss(lesson.predicted[modality], target)
                for modality, target in lesson.standard.items()
                if len(target)
            ]
            each.append(torch.stack(parts).mean() if parts else student.image.sum() * 0)
        return (torch.stack(each) * weights).sum()


class TextContrast:
    """The student's pictures against the teachers' texts.

    Args:
        temperature: Divides the cosines.
    """

    def __init__(self, *, temperature: float) -> None:
        self.temperature = temperature

    def applies(self, lesson: Lesson) -> bool:
        """Return whether it has texts."""
        return lesson.text is not None

    def __call__(self, student: Student, lessons: Sequence[Lesson], weights: Tensor) -> Tensor:
        """Return the weighted mean over teachers."""
        each = []
        for lesson in lessons:
            if lesson.text is None or lesson.described is None:
                raise TeacherError(f"teacher {lesson.name} has no texts to contrast with")
            loss = text_contrast(lesson.described, lesson.text, student.pairs, self.temperature)
            each.append(loss)
        if not each:
            raise TeacherError(
                "no teacher has texts, which the text_contrast objective needs; add one, or leave "
                "the objective out: ~distill.objectives.text_contrast"
            )
        return (torch.stack(each) * weights).sum()
