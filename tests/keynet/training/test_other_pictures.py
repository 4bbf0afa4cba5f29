from __future__ import annotations

import pytest
import torch

from keynet.training.losses import CodeContrast, Contrast, other_pictures
from tests.keynet.training.test_losses import (
    GROUP,
    INTENT,
    TWO_PICTURES,
    batch,
    output,
    plain_loop,
    unit,
)


def test_other_pictures_of_the_same_thing_are_neither_positive_nor_negative() -> None:
    made, two = output(image=unit(8, 16, seed=2)), batch(original=TWO_PICTURES)
    same = ((0, 2), (1, 2))
    assert other_pictures(two).nonzero().tolist() == [[0, 2], [1, 2], [2, 0], [2, 1]]
    # Whether they are equivalent is for groups to say, and what a text asks for intents.
    for over, vector, label in (("group", "key", GROUP), ("intent", "text", INTENT)):
        expected = plain_loop(getattr(made, vector)[label >= 0], label[label >= 0], 0.2)
        found = Contrast(vector=vector, over=over, temperature=0.2)(made, two)
        assert float(found) == pytest.approx(expected, rel=1e-4)
    image, seen = made.image[:6], TWO_PICTURES[:6]
    found = Contrast(vector="image", over="original", temperature=0.2)(made, two)
    assert float(found) == pytest.approx(plain_loop(image, seen, 0.2, same), rel=1e-4)
    assert float(found) != pytest.approx(plain_loop(image, seen, 0.2), rel=1e-4)


def test_instances_and_their_codes_leave_other_pictures_out() -> None:
    # Rows 0 and 5 ask the same about picture 0, row 2 about another picture of the same thing.
    made = output()
    two = batch(
        entity=torch.tensor([0, 0, 0, 1, 1, 0, -1, -1]),
        original=torch.tensor([0, 0, 3, 1, 1, 0, -1, -1]),
    )
    same, instance = ((0, 2), (1, 2), (2, 5)), torch.tensor([0, 1, 2, 3, 4, 0, 6, 6])
    expected = plain_loop(made.key, instance, 0.2, same)
    assert expected != pytest.approx(plain_loop(made.key, instance, 0.2), rel=1e-4)
    found = Contrast(vector="key", over="instance", temperature=0.2)(made, two)
    assert float(found) == pytest.approx(expected, rel=1e-4)
    code = torch.where(made.logits >= 0, 1.0, -1.0) / 8
    for weight in (0, 1):
        expected = plain_loop(code, GROUP, 0.2) + weight * plain_loop(code, instance, 0.2, same)
        found = CodeContrast(temperature=0.2, instance_weight=weight)(made, two)
        assert float(found) == pytest.approx(expected, rel=1e-4)
