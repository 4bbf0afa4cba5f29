"""Judges of whether two requests of a log ask the same (``data.log_groups``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from torch.nn.functional import cosine_similarity

from keynet.types import Request


class _Embedded(Protocol):
    text: Tensor | None


class SentenceTeacher(Protocol):
    """The part of a teacher of texts that judges (``distill.teacher.Teacher``)."""

    def encode(self, requests: Sequence[Request]) -> _Embedded:
        """Return text embeddings [N, D]."""
        ...


class TextCosine:
    """The cosine of two texts in the space of a sentence teacher.

    Such a space hardly tells a negation, or red from blue: what has ever been answered differently
    about one picture is not put before a judge.

    Args:
        teacher: Of texts.
    """

    def __init__(self, *, teacher: SentenceTeacher) -> None:
        self.teacher = teacher
        self._known: dict[str, Tensor] = {}  # [1, D] of each text

    def __call__(self, one: Request, other: Request) -> float:
        """Return the cosine; 0 where a text is absent."""
        if one.text is None or other.text is None:
            return 0.0
        return float(cosine_similarity(self._vector(one.text), self._vector(other.text)))

    def _vector(self, text: str) -> Tensor:
        if text not in self._known:
            vector = self.teacher.encode([Request(text=text)]).text
            if vector is None:
                raise ValueError(
                    "data.source.judge.teacher embeds no texts; take a sentence teacher"
                )
            self._known[text] = vector
        return self._known[text]
