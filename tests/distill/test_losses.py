from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distill.losses import affinity_kl, feature_loss, similarity_shares, text_contrast
from distill.teacher import TeacherError

ONE = torch.ones(1)


def rows(count: int, width: int, seed: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def pair(seed: int, pictures: int = 4, texts: int = 5, width: int = 6) -> tuple[Tensor, Tensor]:
    return rows(pictures, width, seed), rows(texts, width, seed + 1000)


def kl(
    student: tuple[Tensor, Tensor],
    teachers: list[tuple[Tensor, Tensor, float]],
    weights: Tensor = ONE,
    own: float = 0.1,
    temperature: float = 2.0,
) -> Tensor:
    return affinity_kl(student, teachers, weights, student_temperature=own, temperature=temperature)


def test_shares_are_softmaxes_of_cosines_over_the_other_modality() -> None:
    image, text = pair(0)
    over_texts, over_images = similarity_shares(image, text, 0.5)
    assert (over_texts.shape, over_images.shape) == ((4, 5), (5, 4))
    cosine = [[float(F.cosine_similarity(i, t, dim=0)) for t in text] for i in image]
    total = sum(math.exp(c / 0.5) for c in cosine[1])
    assert float(over_texts[1, 3]) == pytest.approx(cosine[1][3] / 0.5 - math.log(total), abs=1e-5)
    torch.testing.assert_close(over_images.exp().sum(1), torch.ones(5))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), temperature=st.floats(0.5, 4.0), own=st.floats(0.02, 1.0))
def test_a_student_that_is_its_one_teacher_loses_nothing_and_no_other_less_than_that(
    seed: int, temperature: float, own: float
) -> None:
    image, text = pair(seed)
    teacher = (3 * image, 0.2 * text, own)  # lengths do not matter
    same = kl((image, text), [teacher], own=own, temperature=temperature)
    other = kl(pair(seed + 1), [teacher], own=own, temperature=temperature)
    assert float(same) == pytest.approx(0, abs=1e-5)
    assert float(other) > float(same)


def test_the_widths_of_student_and_teacher_may_differ() -> None:
    wide = tuple(F.pad(vectors, (0, 3)) for vectors in pair(2))
    assert float(kl(pair(2), [(*wide, 0.1)])) == pytest.approx(0, abs=1e-6)


def test_shares_are_averaged_after_the_softmax() -> None:
    """Teacher one pairs row 1 with 1 at a low temperature, teacher two 1 with 2 at a high one."""
    axes = torch.eye(2)
    teachers = [(axes, axes, 0.1), (axes, axes.flip(0), 1.0)]
    # All its cosines are 0: the student's shares are 1/2.
    student = torch.tensor([[1.0, 0, 0]] * 2), torch.tensor([[0.0, 1, 0], [0, 0, 1]])

    def to_uniform(share: float) -> float:
        return math.log(2) + sum(p * math.log(p) for p in (share, 1 - share))

    def sigmoid(gap: float) -> float:
        return 1 / (1 + math.exp(-gap))

    after = to_uniform((sigmoid(10) + sigmoid(-1)) / 2)  # .634
    before = to_uniform(sigmoid((10 - 1) / 2))  # .989
    assert before - after > 0.5
    found = kl(student, teachers, torch.tensor([0.5, 0.5]), temperature=1.0)
    assert float(found) == pytest.approx(after, rel=1e-4)


def test_both_directions_and_the_squared_temperature() -> None:
    (image, text), (wanted_image, wanted_text) = pair(3), pair(4)
    terms = []
    for turn in (lambda x: x, lambda x: x.T):
        wanted = turn(F.normalize(wanted_image, dim=1) @ F.normalize(wanted_text, dim=1).T)
        found = turn(F.normalize(image, dim=1) @ F.normalize(text, dim=1).T)
        p = (wanted / (3 * 0.2)).softmax(1)
        q = (found / (3 * 0.1)).softmax(1)
        terms.append(float((p * (p / q).log()).sum(1).mean()))
    loss = kl((image, text), [(wanted_image, wanted_text, 0.2)], temperature=3.0)
    assert float(loss) == pytest.approx(9 * sum(terms) / 2, rel=1e-4)


def test_a_weight_of_zero_is_absence() -> None:
    first, second = (*pair(5), 0.1), (*pair(6), 0.05)
    alone = kl(pair(7), [first])
    torch.testing.assert_close(kl(pair(7), [first, second], torch.tensor([1.0, 0.0])), alone)
    assert abs(float(kl(pair(7), [first, second], torch.tensor([0.5, 0.5]))) - float(alone)) > 0.01


def test_the_order_of_a_batch_does_not_matter() -> None:
    order = torch.tensor([2, 0, 3, 1])
    (image, text), (wanted, described) = pair(8), pair(9)
    found = kl((image[order], text), [(wanted[order], described, 0.1)])
    torch.testing.assert_close(found, kl((image, text), [(wanted, described, 0.1)]))


def test_affinity_wants_a_teacher_of_both_and_a_batch_of_both() -> None:
    message = "no teacher has both pictures and texts.*~distill.objectives.affinity"
    with pytest.raises(TeacherError, match=message):
        kl(pair(0), [], torch.zeros(0))
    image, text = pair(0)
    for modality, student in (("picture", (image[:0], text)), ("text", (image, text[:0]))):
        with pytest.raises(TeacherError, match=f"a batch without a {modality}: the affinity"):
            kl(student, [(*student, 0.1)])


def test_feature_loss_by_hand() -> None:
    one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert float(feature_loss(one, other)) == pytest.approx(1 + 0.5)  # smooth L1 of 1 is 0.5
    # opposite: 2, and smooth L1 of 6 is 5.5 in one of the two dimensions
    assert float(feature_loss(3 * one, -3 * one)) == pytest.approx(2 + 5.5 / 2)
    assert float(feature_loss(2 * one, one)) == pytest.approx(0.5 / 2)  # right direction
    both = feature_loss(torch.cat([one, one]), torch.cat([one, other]))
    assert float(both) == pytest.approx(1.5 / 2)


def test_text_contrast_with_several_captions_by_hand() -> None:
    predicted, text = pair(10, pictures=3, texts=5)
    pairs = torch.zeros(3, 5, dtype=torch.bool)
    pairs[0, [1, 4]] = True  # two captions
    pairs[2, 0] = True  # picture 1 has none and is left out
    share = (F.normalize(predicted, dim=1) @ F.normalize(text, dim=1).T / 0.2).softmax(1).log()
    expected = -((share[0, 1] + share[0, 4]) / 2 + share[2, 0]) / 2
    torch.testing.assert_close(text_contrast(predicted, text, pairs, 0.2), expected)


def test_text_contrast_pulls_pictures_to_their_captions() -> None:
    text = torch.eye(4)
    pairs = torch.eye(4, dtype=torch.bool)
    near = text_contrast(text, text, pairs, 0.07)
    far = text_contrast(text.roll(1, 0), text, pairs, 0.07)
    assert float(near) < 1e-4
    assert float(far) == pytest.approx(1 / 0.07, rel=1e-3)


def test_text_contrast_of_a_batch_without_pairs() -> None:
    predicted, text = pair(0)
    message = "no text of the batch describes a picture.*~distill.objectives.text_contrast"
    for given_text in (text, text[:0]):
        nothing = torch.zeros(4, len(given_text), dtype=torch.bool)
        with pytest.raises(TeacherError, match=message):
            text_contrast(predicted, given_text, nothing, 0.07)
