"""Losses of requests of several scopes."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from keynet.evaluation.joint_hash import labelled
from keynet.training.losses import (
    CodeContrast,
    Consistency,
    Contrast,
    across_scopes,
    supervised_contrastive,
)
from keynet.types import KeyOutput, TrainingBatch

# Rows 0 and 4 are one picture and one question, answered otherwise in the second scope.
TWO_SCOPES = {
    "group": torch.tensor([0, 0, 1, 2, 1, 0, 1, 3]),
    "entity": torch.tensor([0, 1, 2, 0, 0, 3, 4, 2]),
    "original": torch.tensor([0, 1, 2, 0, 0, 3, 4, 2]),
    "intent": torch.tensor([0, 0, 0, 1, 0, 0, 0, 1]),
    "scope": torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]),
}


def unit(count: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, width, generator=generator), dim=1)


def output(key: Tensor | None = None) -> KeyOutput:
    key = unit(8, 16) if key is None else key
    logits, image = (unit(len(key), width, seed) for width, seed in ((64, 1), (16, 2)))
    return KeyOutput(key, image, key, logits, torch.zeros(len(key)))


def batch(**labels: Tensor) -> TrainingBatch:
    return labelled(labels["group"])._replace(**labels)


def test_pairs_of_two_scopes_tell_nothing_unless_they_ask_otherwise() -> None:
    found = across_scopes(batch(**TWO_SCOPES))
    group, intent, scope = (TWO_SCOPES[name].tolist() for name in ("group", "intent", "scope"))
    for i in range(8):
        for j in range(8):
            same = intent[i] == intent[j] or group[i] == group[j]
            assert bool(found[i, j]) == (scope[i] != scope[j] and same)
    assert found[0, 4] and found[1, 5] and not found[0, 7] and not found[0, 3]


def left_out_loop(rows: Tensor, left_out: Tensor, group: Tensor, temperature: float) -> float:
    losses = []
    for i in range(len(rows)):
        others = [a for a in range(len(rows)) if a != i and not left_out[i, a]]
        positives = [p for p in others if group[p] == group[i]]
        shares = [math.exp(float(rows[i] @ rows[a]) / temperature) for a in others]
        for p in positives:
            share = math.exp(float(rows[i] @ rows[p]) / temperature) / sum(shares)
            losses.append((-math.log(share) / len(positives), i))
    return sum(loss for loss, _ in losses) / len({i for _, i in losses})


def test_contrast_across_scopes_is_the_loop_without_those_pairs() -> None:
    two, group = batch(**TWO_SCOPES), TWO_SCOPES["group"]
    left_out, key = across_scopes(two), unit(8, 16)
    found = Contrast(vector="key", over="group", temperature=0.2)(output(), two)
    assert float(found) == pytest.approx(left_out_loop(key, left_out, group, 0.2), rel=1e-4)
    codes = torch.where(unit(8, 64, seed=1) >= 0, 1.0, -1.0) / 8
    found = CodeContrast(temperature=0.2, instance_weight=0)(output(), two)
    assert float(found) == pytest.approx(left_out_loop(codes, left_out, group, 0.2), rel=1e-4)
    # What a picture shows and a text asks is so in every scope.
    for vector, over in (("image", "original"), ("text", "intent")):
        loss = Contrast(vector=vector, over=over)
        one = batch(**(TWO_SCOPES | {"scope": torch.zeros(8, dtype=torch.int64)}))
        assert torch.equal(loss(output(), two), loss(output(), one))


def test_instances_codes_and_consistency_are_of_one_scope() -> None:
    names = ("group", "entity", "original", "intent")
    labels = {name: torch.zeros(4, dtype=torch.int64) for name in names}
    labels["scope"] = torch.arange(4)
    key, apart = unit(4, 16).requires_grad_(), batch(**labels)
    for loss in (Contrast(vector="key", over="instance"), Consistency()):
        found = loss(output(key=key), apart)
        found.backward()
        assert float(found.detach()) == 0
    assert CodeContrast(instance_weight=3.0)(output(key=key), apart) == 0
    assert key.grad is not None and not key.grad.any()  # nor NaN: a row without any other
    near = batch(**(labels | {"scope": torch.tensor([0, 1, 0, 3])}))
    torch.testing.assert_close(Consistency()(output(key=key), near), 1 - key[0] @ key[2])


def test_which_scope_it_is_does_not_matter_where_there_is_one() -> None:
    losses = (
        Contrast(vector="key", over="group"), Contrast(vector="key", over="instance"),
        CodeContrast(instance_weight=3.0), Consistency(),
    )  # fmt: skip
    for loss in losses:
        first, other = (
            loss(output(), batch(**(TWO_SCOPES | {"scope": torch.full((8,), n)}))) for n in (0, 7)
        )
        assert torch.equal(first, other)
    rows, nothing = unit(8, 16), torch.zeros(8, 8, dtype=torch.bool)
    assert torch.equal(
        supervised_contrastive(rows, TWO_SCOPES["group"], 0.07, nothing),
        supervised_contrastive(rows, TWO_SCOPES["group"], 0.07),
    )
