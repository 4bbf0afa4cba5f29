from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from distill.losses import affinity_kl, feature_loss, text_contrast
from distill.objectives import Affinity, Feature, Lesson, Objective, Student, TextContrast
from distill.teacher import TeacherError

U, V = 4, 5
WEIGHTS = torch.tensor([0.25, 0.75])
AFFINITY = Affinity(student_temperature=0.07, temperature=2.0)
CONTRAST = TextContrast(temperature=0.1)


def rows(count: int, width: int, seed: int) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def student() -> Student:
    pairs = torch.eye(U, V, dtype=torch.bool)
    return Student(F.normalize(rows(U, 6, 1)), F.normalize(rows(V, 6, 2)), pairs)


def lesson(
    seed: int = 10, width: int = 8, modalities: tuple[str, ...] = ("image", "text"), name: str = "t"
) -> Lesson:
    counts = {"image": U, "text": V}
    made = {m: rows(counts[m], width, seed + n) for n, m in enumerate(("image", "text"))}
    made = {m: made[m] for m in modalities}
    return Lesson(
        name=name,
        temperature=0.1,
        image=made.get("image"),
        text=made.get("text"),
        standard={m: (x - x.mean(0)) / x.std(0) for m, x in made.items()},
        predicted={m: rows(len(x), width, seed + 50) for m, x in made.items()},
        described=rows(U, width, seed + 70) if "text" in made else None,
    )


BOTH, PICTURES, TEXTS = (lesson(modalities=m) for m in (("image", "text"), ("image",), ("text",)))


@pytest.mark.parametrize(
    ("objective", "expected"),
    [(AFFINITY, (True, False, False)), (Feature(), (True, True, True)),
     (CONTRAST, (True, False, True))],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_whom_an_objective_can_learn_from(objective: Objective, expected: tuple[bool, ...]) -> None:
    assert tuple(objective.applies(each) for each in (BOTH, PICTURES, TEXTS)) == expected


def test_affinity_is_the_kl_to_all_teachers_at_once(student: Student) -> None:
    lessons = [lesson(10), lesson(20, width=12)]
    teachers = [(x.image, x.text, 0.1) for x in lessons]
    expected = affinity_kl(
        (student.image, student.text), teachers, WEIGHTS, student_temperature=0.07, temperature=2.0
    )
    torch.testing.assert_close(AFFINITY(student, lessons, WEIGHTS), expected)


def test_feature_is_the_weighted_mean_over_teachers_of_the_mean_over_modalities(
    student: Student,
) -> None:
    both, pictures = lesson(10), lesson(20, modalities=("image",))

    def of(lesson: Lesson, modality: str) -> Tensor:
        return feature_loss(lesson.predicted[modality], lesson.standard[modality])

    expected = 0.25 * (of(both, "image") + of(both, "text")) / 2 + 0.75 * of(pictures, "image")
    torch.testing.assert_close(Feature()(student, [both, pictures], WEIGHTS), expected)


def test_feature_leaves_out_a_modality_that_the_batch_lacks(student: Student) -> None:
    both = lesson(10)
    standard, predicted = both.standard | {"text": torch.zeros(0, 8)}, both.predicted
    without = both._replace(standard=standard, predicted=predicted | {"text": torch.zeros(0, 8)})
    found = Feature()(student, [without], torch.ones(1))
    torch.testing.assert_close(found, feature_loss(predicted["image"], standard["image"]))
    nothing = {"image": torch.zeros(0, 8)}
    empty = lesson(modalities=("image",))._replace(standard=nothing, predicted=nothing)
    assert float(Feature()(student, [empty], torch.ones(1))) == 0


def test_text_contrast_is_the_weighted_mean_over_teachers(student: Student) -> None:
    lessons = [lesson(10), lesson(20, width=12, modalities=("text",))]
    each = [text_contrast(x.described, x.text, student.pairs, 0.1) for x in lessons]
    expected = 0.25 * each[0] + 0.75 * each[1]
    torch.testing.assert_close(CONTRAST(student, lessons, WEIGHTS), expected)


def test_no_teacher_has_text(student: Student) -> None:
    for objective, name in ((AFFINITY, "affinity"), (CONTRAST, "text_contrast")):
        with pytest.raises(TeacherError, match=rf"no teacher has.*~distill\.objectives\.{name}"):
            objective(student, [], torch.zeros(0))
    with pytest.raises(TeacherError, match="teacher t has no texts to contrast with"):
        CONTRAST(student, [PICTURES], torch.ones(1))


@pytest.mark.parametrize("make", [lambda: AFFINITY, Feature, lambda: CONTRAST])
def test_what_the_student_made_learns(make: Callable[[], Objective], student: Student) -> None:
    learning = [x.clone().requires_grad_() for x in student[:2]]
    both = lesson()
    predicted = {m: x.clone().requires_grad_() for m, x in both.predicted.items()}
    described = both.described.clone().requires_grad_()
    taught = both._replace(predicted=predicted, described=described)
    objective = make()
    objective(Student(*learning, student.pairs), [taught], torch.ones(1)).backward()
    expected = {"Affinity": learning, "Feature": [*predicted.values()], "TextContrast": [described]}
    for tensor in expected[type(objective).__name__]:
        assert tensor.grad is not None
        assert tensor.grad.abs().max() > 0
