from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aligners.fusion import ResidualMLP
from keynet.training.crossed import CrossedContrast, crossed
from keynet.training.losses import supervised_contrastive
from keynet.training.module import KeyModule
from keynet.types import KeyOutput, TrainingBatch

# entity, intent, picture, text, scope, caption: entity 0 in two encodings, intent 0 in two texts.
ROWS = (
    (0, 0, 0, 0, 0, 0),
    (0, 1, 0, 1, 0, 0),
    (0, 0, 1, 2, 0, 0),
    (1, 1, 2, 3, 0, 0),
    (1, 2, 2, 4, 0, 0),
    (-1, 0, 9, 5, 0, 0),
    (2, -1, 3, 9, 0, 0),
)


def batch(rows: Any = ROWS, original: Tensor | None = None) -> TrainingBatch:
    entity, intent, image, text, scope, caption = torch.tensor(rows).T
    nothing = torch.zeros(0)
    return TrainingBatch(
        nothing, entity >= 0, nothing, nothing, image, text, nothing, entity,
        entity if original is None else original, intent, nothing, nothing, caption.bool(), scope,
    )  # fmt: skip


def pairs(rows: Any = ROWS, questions: int = 8) -> list[tuple[list[int], list[int]]]:
    return [(p.tolist(), t.tolist()) for p, t in crossed(batch(rows), questions)]


def output(seed: int = 0) -> KeyOutput:
    made = F.normalize(torch.randn(3, len(ROWS), 8, generator=torch.manual_seed(seed)), dim=-1)
    return KeyOutput(made[0], made[1], made[2], made[0], made[0, :, 0])


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    fusion, matrix = ResidualMLP(key_dim=8, hidden_dim=16), (torch.randn(64, 8), torch.zeros(64))
    return SimpleNamespace(fusion=fusion, taught_matrix=lambda: matrix)


def test_each_question_is_asked_in_two_phrasings_about_each_picture() -> None:
    pictures = [0, 2, 3, 6]
    assert pairs() == [(pictures, [0, 2]), (pictures, [1, 3])]
    assert pairs(questions=1) == [(pictures, [0, 2])]


def test_nothing_is_crossed_where_no_picture_comes_in_two_encodings() -> None:
    assert pairs([row for row in ROWS if row[2] != 1]) == []


def test_captions_ask_nothing() -> None:
    assert pairs([(*row[:5], 1) if row[1] == 0 else row for row in ROWS]) == [
        ([0, 2, 3, 6], [1, 3])
    ]


def test_scopes_are_not_crossed() -> None:
    apart = [(*row[:4], 1, row[5]) if row[0] == 1 else row for row in ROWS]
    assert pairs(apart) == [([0, 2, 6], [0, 2])]  # the second phrasing of intent 1 is of scope 1
    assert pairs([(*row[:4], int(row[2] == 1), row[5]) for row in ROWS]) == []  # nor encodings


def test_the_loss_is_the_contrast_of_keys_and_codes_made_one_by_one(model: Any) -> None:
    made, expected = output(), []
    for pictures, texts in (([0, 2, 3, 6], [0, 2]), ([0, 2, 3, 6], [1, 3])):
        key = torch.cat(
            [model.fusion(made.image[p : p + 1], made.text[t : t + 1]) for t in texts
             for p in pictures]
        )  # fmt: skip
        code = torch.where(key @ model.taught_matrix()[0].T >= 0, 1.0, -1.0) / 64**0.5
        entity = torch.tensor([ROWS[p][0] for p in pictures] * 2)
        expected.append(
            supervised_contrastive(key, entity, 0.1)
            + 0.25 * supervised_contrastive(code, entity, 0.1)
        )
    found = CrossedContrast(questions=8, code_weight=0.25, temperature=0.1)(made, batch(), model)
    torch.testing.assert_close(found, torch.stack(expected).mean())


def test_other_pictures_of_the_same_thing_are_left_out(model: Any) -> None:
    made, loss = output(), CrossedContrast(questions=1, code_weight=0.5, temperature=0.1)
    # Row 3 shows entity 0 as well, in another picture than rows 0 and 2.
    rows = [(0, *ROWS[3][1:]) if n == 3 else row for n, row in enumerate(ROWS)]
    original = torch.tensor([0, 0, 0, 1, 1, -1, 2])
    pictures, texts = torch.tensor([0, 2, 3, 6]).repeat(2), torch.tensor([0, 2])
    key = model.fusion(made.image[pictures], made.text[texts.repeat_interleave(4)])
    one, other = torch.tensor([0, 1, 4, 5]), torch.tensor([2, 6])
    left_out = torch.zeros(8, 8, dtype=torch.bool)
    left_out[one[:, None], other] = left_out[other[:, None], one] = True
    code = torch.where(key @ model.taught_matrix()[0].T >= 0, 1.0, -1.0) / 64**0.5
    expected = supervised_contrastive(key, original[pictures], 0.1, left_out)
    expected = expected + 0.5 * supervised_contrastive(code, original[pictures], 0.1, left_out)
    torch.testing.assert_close(loss(made, batch(rows, original), model), expected)


def test_it_teaches_the_fusion_to_tell_pictures_apart_under_one_question(model: Any) -> None:
    made, loss = output(), CrossedContrast(questions=8, code_weight=0.5)
    optimizer = torch.optim.Adam(model.fusion.parameters(), lr=1e-2)

    def cosines() -> Tensor:
        """Of the same picture in two encodings, and of two pictures, under intent 0."""
        key = model.fusion(made.image[[0, 2, 3]], made.text[[0, 0, 0]])
        return torch.stack([key[0] @ key[1], key[0] @ key[2]]).detach()

    before = cosines()
    for _ in range(60):
        optimizer.zero_grad()
        loss(made, batch(), model).backward()
        optimizer.step()
    same, other = cosines() - before
    assert same > 0.1
    assert same > other + 0.1


def test_without_what_can_be_crossed_it_is_zero_with_a_gradient(model: Any) -> None:
    made = output()
    key = made.key.clone().requires_grad_()
    loss = CrossedContrast(questions=8, code_weight=0.5)
    found = loss(made._replace(key=key), batch([(*r[:4], n, 0) for n, r in enumerate(ROWS)]), model)
    assert found.item() == 0
    found.backward()
    assert key.grad is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"questions": 0}, {"questions": 2.5}, {"questions": "eight"}, {"questions": True},
        {"code_weight": -0.5}, {"code_weight": float("nan")}, {"code_weight": "half"},
        {"temperature": 0}, {"temperature": -1.0},
    ],
)  # fmt: skip
def test_settings_out_of_range(wrong: dict[str, Any]) -> None:
    (name, value), *_ = wrong.items()
    settings: Any = {"questions": 8, "code_weight": 0.5} | wrong
    with pytest.raises(ValueError, match=f"crossed_contrast: {name}={value!r}: expected"):
        CrossedContrast(**settings)


def test_a_fusion_that_reads_tokens_is_refused(make_module: Callable[..., KeyModule]) -> None:
    one = {"crossed_contrast": {"weight": 1.0, "loss": CrossedContrast(questions=8, code_weight=1)}}
    module = make_module(losses=one)
    module.model.fusion.reads_tokens = True
    with pytest.raises(ValueError, match="fusion=qformer reads their tokens; take"):
        KeyModule(
            model=module.model, losses=one, learning_rate=1, image_learning_rate=1, weight_decay=0,
            warmup_share=0,
        )  # fmt: skip
