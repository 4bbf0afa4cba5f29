from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch

from data.judges import TextCosine
from keynet.types import Request


class Teacher:
    def __init__(self, blind: bool = False) -> None:
        self.asked: list[str | None] = []
        self.blind = blind

    def encode(self, requests: Sequence[Request]) -> SimpleNamespace:
        self.asked += [r.text for r in requests]
        rows = torch.tensor([[3.0, 0.0] if r.text == "a" else [2.0, 2.0] for r in requests])
        return SimpleNamespace(text=None if self.blind else rows)


def test_the_cosine_of_two_texts_each_encoded_once() -> None:
    teacher = Teacher()
    judge = TextCosine(teacher=teacher)
    for _ in range(2):
        assert judge(Request(text="a"), Request(text="b")) == pytest.approx(0.5**0.5)
    assert judge(Request(text="a"), Request(text="a")) == pytest.approx(1)
    assert judge(Request(text="a"), Request(image=b"x")) == 0
    assert teacher.asked == ["a", "b"]


def test_a_teacher_of_pictures_is_refused() -> None:
    with pytest.raises(ValueError, match=r"judge.teacher embeds no texts"):
        TextCosine(teacher=Teacher(blind=True))(Request(text="a"), Request(text="b"))
