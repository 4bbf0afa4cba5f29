from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distill.teacher import TeacherError
from distill.weighting import (
    ByDispersion,
    ByPrecision,
    KeepWorst,
    Uniform,
    Weighting,
    angular_dispersion,
    held_out_precision,
    mean_average_precision,
    scores_of,
)
from keynet.types import Request

ALL = (Uniform(), ByPrecision(), ByPrecision(by="rank"), ByDispersion(), KeepWorst())
POSITIVE = st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5)


def weigh(
    weighting: Weighting,
    losses: list[float],
    dispersion: list[float] | None = None,
    precision: list[float] | None = None,
    seed: int = 0,
) -> Tensor:
    count = len(losses)
    return weighting(
        torch.tensor(losses),
        torch.tensor(dispersion or [1.0] * count),
        torch.tensor(precision or [float("nan")] * count),
        torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize("weighting", ALL, ids=lambda w: type(w).__name__)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(losses=POSITIVE, dispersion=POSITIVE, precision=POSITIVE, count=st.integers(1, 5))
def test_weights_are_not_negative_and_sum_to_1(
    weighting: Weighting,
    losses: list[float],
    dispersion: list[float],
    precision: list[float],
    count: int,
) -> None:
    weights = weigh(weighting, losses[:count], dispersion[:count], precision[:count])
    assert weights.shape == (count,)
    assert (weights >= 0).all()
    assert float(weights.sum()) == pytest.approx(1, abs=1e-5)


def test_weights_by_hand() -> None:
    scores = [0.1, 0.6, 0.3]
    assert weigh(Uniform(), scores).tolist() == pytest.approx([1 / 3] * 3)
    by_value = weigh(ByPrecision(), [1.0] * 3, precision=scores)
    assert by_value.tolist() == pytest.approx(scores)
    by_rank = weigh(ByPrecision(by="rank"), [1.0] * 3, precision=scores)
    assert by_rank.tolist() == pytest.approx([1 / 6, 3 / 6, 2 / 6])
    by_dispersion = weigh(ByDispersion(), [1.0] * 3, dispersion=[1.0, 0.5, 0.25])
    assert by_dispersion.tolist() == pytest.approx([1 / 7, 2 / 7, 4 / 7])


def test_what_a_weighting_needs() -> None:
    assert [w.needs_precision for w in ALL] == [False, True, True, False, False]
    assert [w.needs_losses for w in ALL] == [False, False, False, False, True]


def test_by_precision_of_nothing() -> None:
    with pytest.raises(TeacherError, match=r"are \[0\.0, 0\.0\]: nothing to weigh by"):
        weigh(ByPrecision(), [1.0, 1.0], precision=[0.0, 0.0])
    with pytest.raises(ValueError, match=r"weighting\.by='worst': expected value or rank"):
        ByPrecision(by="worst")


def test_keep_worst_keeps_the_worst_and_drops_half_of_the_others() -> None:
    kept = torch.stack([weigh(KeepWorst(), [1.0, 3.0, 2.0], seed=n) > 0 for n in range(600)])
    share = kept.double().mean(0)
    assert share[1] == 1
    for other in (0, 2):
        assert 0.44 < share[other] < 0.56  # three deviations
    assert 0.2 < (kept[:, 0] & kept[:, 2]).double().mean() < 0.3  # independently
    weights = weigh(KeepWorst(), [1.0, 3.0, 2.0], seed=0)
    assert len(weights[weights > 0].unique()) == 1


def test_keep_worst_is_a_function_of_its_generator() -> None:
    drawn = [tuple(weigh(KeepWorst(), [1.0] * 8, seed=n).tolist()) for n in (0, 0, 1, 2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


@pytest.mark.parametrize(("drop", "kept"), [(0.0, 4), (0.999, 1)])
def test_how_many_keep_worst_drops(drop: float, kept: int) -> None:
    assert int((weigh(KeepWorst(drop=drop), [1.0, 2.0, 3.0, 4.0]) > 0).sum()) == kept


@pytest.mark.parametrize("drop", [-0.1, 1.0])
def test_keep_worst_of_no_share(drop: float) -> None:
    with pytest.raises(ValueError, match=rf"weighting\.drop={drop}: expected a share"):
        KeepWorst(drop=drop)


def test_angular_dispersion_by_hand() -> None:
    right = torch.tensor([[1.0, 0.0], [0.0, 5.0]])  # 45 degrees to the mean, each
    assert angular_dispersion(right) == pytest.approx((math.pi / 4) ** 2, rel=1e-5)
    assert angular_dispersion(torch.ones(7, 3)) == pytest.approx(0, abs=1e-5)
    assert angular_dispersion(9 * right) == pytest.approx(angular_dispersion(right))


def bools(*marks: str) -> Tensor:
    return torch.tensor([[mark == "x" for mark in row] for row in marks])


def test_mean_average_precision_by_hand() -> None:
    similarity = torch.tensor([[0.9, 0.8, 0.7, 0.6]] * 3)
    relevant = bools("x.x.", ".x..", "....")  # the last is left out
    expected = ((1 + 2 / 3) / 2 + 1 / 2) / 2
    assert mean_average_precision(similarity, relevant) == pytest.approx(expected)
    assert mean_average_precision(similarity[:, [3, 0, 2, 1]], relevant[:, [3, 0, 2, 1]]) == (
        pytest.approx(expected)
    )


def test_ties_share_their_ranks() -> None:
    # ranks 1, 2.5, 2.5, 4
    similarity = torch.tensor([[0.9, 0.5, 0.5, 0.1]])
    assert mean_average_precision(similarity, bools(".x..")) == pytest.approx(1 / 2.5)
    assert mean_average_precision(similarity, bools("x.x.")) == pytest.approx((1 + 2 / 2.5) / 2)
    assert mean_average_precision(similarity, bools(".xx.")) == pytest.approx(1.5 / 2.5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(marks=st.lists(st.booleans(), min_size=2, max_size=12).filter(any), value=st.floats(-1, 1))
def test_a_constant_encoder_gets_what_chance_gives_it(marks: list[bool], value: float) -> None:
    found = mean_average_precision(torch.full((1, len(marks)), value), torch.tensor([marks]))
    assert found == pytest.approx((sum(marks) + 1) / (len(marks) + 1), rel=1e-5)


def test_nothing_relevant_is_unknown() -> None:
    assert math.isnan(mean_average_precision(torch.zeros(2, 3), bools("...", "...")))
    assert math.isnan(mean_average_precision(torch.zeros(0, 0), torch.zeros(0, 0).bool()))


def captioned(count: int = 10) -> list[Request]:
    return [
        Request(image=f"picture {n}".encode(), text=f"caption {n}", entity=str(n))
        for n in range(count)
    ]


def test_precision_of_both_is_of_texts_among_pictures(make_teacher: Callable[..., Any]) -> None:
    aligned = make_teacher()
    aligned.weights["text"] = aligned.weights["image"]
    assert held_out_precision(aligned, captioned()) == pytest.approx(1)
    assert held_out_precision(make_teacher(), captioned()) < 0.8
    crossed = [
        Request(image=f"picture {(n + 1) % 10}".encode(), text=f"caption {n}", entity=str(n))
        for n in range(10)
    ]
    assert held_out_precision(aligned, crossed) < 0.5


def test_each_content_is_encoded_once(make_teacher: Callable[..., Any]) -> None:
    teacher = make_teacher()
    held_out_precision(teacher, captioned() * 3)
    assert set(Counter(teacher.asked).values()) == {1}
    assert len(teacher.asked) == 20


@pytest.mark.parametrize(("modality", "of"), [("image", "entity"), ("text", "intent")])
def test_precision_of_one_is_of_its_own_kind(
    make_teacher: Callable[..., Any], modality: str, of: str
) -> None:
    """Contents 3 and 3 again are alike and of one label; the content itself does not count."""
    teacher = make_teacher(modalities=(modality,))
    contents = [("a 3", "x"), ("b 3", "x"), ("c 4", "y"), ("d 4", "y"), ("e 5", "z")]
    requests = [
        Request(**{modality: text.encode() if modality == "image" else text, of: label})
        for text, label in contents
    ]
    assert held_out_precision(teacher, requests) == pytest.approx(1)
    mixed = [
        Request(**{modality: getattr(r, modality), of: label})
        for r, label in zip(requests, "xyxyz", strict=True)
    ]
    assert held_out_precision(teacher, mixed) < 0.8


def test_pictures_may_be_arrays(make_teacher: Callable[..., Any]) -> None:
    class Colours(make_teacher):  # type: ignore[misc, valid-type]
        def encode(self, requests: Any) -> Any:
            rows = torch.tensor([[float(r.image.mean()), 1.0] for r in requests])
            return type(super().encode([]))(rows, None)

    pictures = [np.full((2, 2, 3), value, np.uint8) for value in (9, 9, 0, 0)]
    requests = [Request(image=p, entity=e) for p, e in zip(pictures, "aabb", strict=True)]
    assert held_out_precision(Colours(modalities=("image",)), requests) == pytest.approx(1)


def test_no_held_out_requests_are_no_precision(make_teacher: Callable[..., Any]) -> None:
    for modalities in (("image", "text"), ("image",), ("text",)):
        assert math.isnan(held_out_precision(make_teacher(modalities=modalities), []))
    with pytest.raises(TeacherError, match="teacher b: the held-out requests have no two pictures"):
        scores_of({"a": 0.5, "b": float("nan")})
    assert scores_of({"a": 0.5, "b": 0.25}).tolist() == [0.5, 0.25]
