from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import distill.distillation
from distill.bridge import BridgeTeacher
from distill.distillation import Distillation
from distill.objectives import Affinity, Feature, TextContrast
from distill.store import StoreError
from distill.teacher import Teacher, TeacherError
from distill.weighting import ByDispersion, ByPrecision, KeepWorst, Uniform
from keynet.types import KeyOutput, Samples, TrainingBatch

Make = Callable[..., Any]
KEY_DIM = 6
ALL = {
    "affinity": {"weight": 1.0, "objective": Affinity(student_temperature=0.07, temperature=2.0)},
    "feature": {"weight": 1.0, "objective": Feature()},
    "text_contrast": {"weight": 0.5, "objective": TextContrast(temperature=0.07)},
}
FEATURE = {"feature": ALL["feature"]}


def distillation(*teachers: Teacher, **changes: Any) -> Distillation:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "objectives": ALL, "weighting": Uniform(), "standardise": "phi_s", "key_dim": KEY_DIM,
        "store": None, "seed": 0,
    }  # fmt: skip
    return Distillation(teachers={t.name: t for t in teachers}, **(settings | changes))


def attached(samples: Samples, *teachers: Teacher, **changes: Any) -> Distillation:
    made = distillation(*teachers, **changes)
    made.attach(samples, "cpu", torch.float32)
    return made


class Tables(nn.Module):
    """A student that looks its vectors up by sample number."""

    def __init__(self, count: int = 24) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.image = nn.Parameter(torch.randn(count, KEY_DIM))
        self.text = nn.Parameter(torch.randn(count, KEY_DIM))

    def forward(self, batch: TrainingBatch) -> KeyOutput:
        image, text = (
            F.normalize(table[numbers], dim=1) * (numbers >= 0)[:, None]
            for table, numbers in ((self.image, batch.picture_id), (self.text, batch.text_id))
        )
        key = F.normalize(image + text, dim=1)
        return KeyOutput(key, image, text, key, (image * text).sum(1))


# Picture, text; the second request of picture 3 asks, and one request of each modality alone.
ROWS = [(3, 3), (3, 15), (7, 7), (0, 0), (-1, 20), (5, -1), (7, 19), (0, 0)]


def batch(rows: list[tuple[int, int]] = ROWS, captions: int = 12) -> TrainingBatch:
    pictures, texts = (torch.tensor(column) for column in zip(*rows, strict=True))
    nothing = torch.zeros(len(rows))
    described = (pictures >= 0) & (texts >= 0) & (texts < captions)
    return TrainingBatch(
        nothing, pictures >= 0, *[nothing] * 8,
        picture_id=pictures, text_id=texts, described=described, scope=nothing,
    )  # fmt: skip


@pytest.fixture
def samples(make_samples: Make) -> Samples:
    return make_samples()


def summed(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(losses.values())).sum()


def test_each_objective_gives_its_weighted_loss(make_teacher: Make, samples: Samples) -> None:
    found = attached(samples, make_teacher())(Tables()(batch()), batch())
    assert set(found) == set(ALL)
    assert all(loss.shape == () and loss.isfinite() and loss > 0 for loss in found.values())
    doubled = {name: entry | {"weight": 2 * entry["weight"]} for name, entry in ALL.items()}
    other = attached(samples, make_teacher(), objectives=doubled)(Tables()(batch()), batch())
    for name, loss in found.items():
        torch.testing.assert_close(other[name], 2 * loss)


def test_what_comes_again_counts_once(make_teacher: Make, samples: Samples) -> None:
    taught = attached(samples, make_teacher()).eval()
    once = [(3, 3), (7, 7), (0, 0), (5, 15)]
    again = [*once, (3, 3), (3, 15), (7, 7), (-1, 15), (0, -1)]
    found = [taught(Tables()(batch(rows)), batch(rows)) for rows in (once, again, again[::-1])]
    for other in found[1:]:
        for name, loss in found[0].items():
            torch.testing.assert_close(other[name], loss)


def test_text_contrast_is_over_captions(make_teacher: Make, samples: Samples) -> None:
    """A question stands for a text that does not describe, whatever picture it comes with."""
    taught = attached(samples, make_teacher(), objectives={"text_contrast": ALL["text_contrast"]})
    questions = [(3, 15), (7, 19)]
    with pytest.raises(TeacherError, match="no text of the batch describes a picture"):
        taught(Tables()(batch(questions)), batch(questions))
    assert taught(Tables()(batch()), batch())["text_contrast"].item() > 0


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("rows", [[(3, -1), (5, -1)], [(-1, 4), (-1, 6)]])
def test_a_batch_without_texts_or_pictures(
    tmp_path: Path, make_teacher: Make, samples: Samples, rows: Any, stored: bool
) -> None:
    settings: dict[str, Any] = {"store": tmp_path if stored else None, "standardise": "running"}
    taught = attached(samples, make_teacher(), **settings)
    with pytest.raises(TeacherError, match="a batch without a"):
        taught(Tables()(batch(rows)), batch(rows))
    features = attached(samples, make_teacher(), objectives=FEATURE, **settings)
    loss = features(Tables()(batch(rows)), batch(rows))["feature"]
    assert loss.isfinite() and loss > 0
    assert all(value.isfinite().all() for value in features.standardisers.buffers())


def test_no_teacher_has_text(make_teacher: Make, samples: Samples) -> None:
    pictures = make_teacher(modalities=("image",))
    for name in ("affinity", "text_contrast"):
        taught = attached(samples, pictures, objectives={name: ALL[name]})
        with pytest.raises(TeacherError, match=rf"no teacher has.*~distill\.objectives\.{name}"):
            taught(Tables()(batch()), batch())


def teachers_of(kind: str, make_teacher: Make) -> list[Any]:
    if kind == "plain":
        return [make_teacher(), make_teacher("eye", dim=12, seed=2, modalities=("image",))]
    image = make_teacher("eye", dim=12, modalities=("image",))
    text = make_teacher("tongue", dim=16, seed=1, modalities=("text",))
    return [image, BridgeTeacher(name="bridge", image=image, text=text, dim=4, epochs=2)]


@pytest.mark.parametrize("standardise", ["phi_s", "running"])
@pytest.mark.parametrize("kind", ["plain", "bridge"])
def test_stored_embeddings_give_the_losses_of_teachers_that_are_asked(
    tmp_path: Path, make_teacher: Make, samples: Samples, kind: str, standardise: str
) -> None:
    runs = [
        attached(samples, *teachers_of(kind, make_teacher), store=store, standardise=standardise)
        for store in (None, tmp_path, tmp_path)  # made, then opened
    ]
    student = Tables()
    for _ in range(2):
        online, *stored = (run(student(batch()), batch()) for run in runs)
        for other in stored:
            for name, loss in online.items():
                torch.testing.assert_close(other[name], loss, rtol=1e-6, atol=1e-6)
    stores = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(stores) == 2  # a bridge has a head there, and no store of its own


def test_a_store_is_asked_and_not_the_teacher(
    tmp_path: Path, make_teacher: Make, samples: Samples
) -> None:
    attached(samples, make_teacher(), store=tmp_path)
    teacher = make_teacher()
    taught = attached(samples, teacher, store=tmp_path)
    taught(Tables()(batch()), batch())
    assert teacher.asked == []
    online = make_teacher()
    attached(samples, online)(Tables()(batch()), batch())
    assert online.asked


def test_a_store_that_was_tampered_with(
    tmp_path: Path, make_teacher: Make, samples: Samples
) -> None:
    attached(samples, make_teacher(), store=tmp_path)
    (folder,) = tmp_path.iterdir()
    other = make_teacher(seed=4)
    folder.rename(tmp_path / folder.name.replace(make_teacher().fingerprint, other.fingerprint))
    with pytest.raises(StoreError, match=f"fingerprint is .* expected '{other.fingerprint}'"):
        attached(samples, other, store=tmp_path)


def test_the_student_and_the_projectors_learn_and_the_teachers_do_not(
    make_teacher: Make, samples: Samples
) -> None:
    teacher, student = make_teacher(), Tables()
    taught = attached(samples, teacher)
    summed(taught(student(batch()), batch())).backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in student.parameters())
    assert all(p.grad is not None for p in taught.parameters())
    assert all(p.grad is None for p in teacher.weights.parameters())
    assert not {id(p) for p in taught.parameters()} & {id(p) for p in teacher.weights.values()}
    assert {name.split(".")[0] for name in taught.state_dict()} == {
        "projectors", "standardisers", "dispersion", "precision", "batches",
    }  # fmt: skip
    assert set(taught.projectors["own"]) == {"image", "text", "described"}


def test_a_teacher_that_is_a_module_stays_out_of_the_state(
    make_teacher: Make, samples: Samples
) -> None:
    class Module(nn.Module):
        """Own weights and the members of a teacher."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)
            own = make_teacher(modalities=("text",))
            self.name, self.modalities, self.dim, self.temperature = "mod", ("text",), 8, 0.1
            self.fingerprint, self.encode = "0" * 16, own.encode

        def to(self, device: Any, dtype: Any) -> None:  # type: ignore[override]
            """Nothing to move."""

    module: Any = Module()
    taught = attached(samples, module, objectives=FEATURE)
    assert taught(Tables()(batch()), batch())["feature"].isfinite()
    assert not [name for name in taught.state_dict() if "inner" in name]
    assert not {id(p) for p in module.inner.parameters()} & {id(p) for p in taught.parameters()}


def test_a_state_carries_estimates_and_the_count_of_batches(
    make_teacher: Make, samples: Samples
) -> None:
    settings: dict[str, Any] = {"weighting": KeepWorst(), "standardise": "running"}
    teachers = [make_teacher(f"t{n}", seed=n) for n in range(4)]
    student = Tables()

    def run(taught: Distillation, count: int) -> list[float]:
        return [summed(taught(student(batch()), batch())).item() for _ in range(count)]

    whole = attached(samples, *teachers, **settings)
    expected = run(whole, 6)
    assert len({round(value, 4) for value in expected}) > 3  # other teachers are dropped each time
    first = attached(samples, *teachers, **settings)
    assert run(first, 3) == expected[:3]
    second = attached(samples, *teachers, **settings)
    second.load_state_dict(first.state_dict())
    assert run(second, 3) == expected[3:]
    assert run(attached(samples, *teachers, **settings, seed=1), 6) != expected


def test_what_all_teachers_that_can_were_dropped_from_teaches_nothing(
    make_teacher: Make, samples: Samples
) -> None:
    class First(Uniform):
        def __call__(self, losses: Tensor, *_: Any) -> Tensor:
            return torch.eye(len(losses))[0]

    pictures, both = make_teacher("eye", modalities=("image",)), make_teacher()
    for teachers, expected in (((pictures, both), {"feature"}), ((both, pictures), set(ALL))):
        taught = attached(samples, *teachers, weighting=First())
        assert set(taught(Tables()(batch()), batch())) == expected


def test_weights_are_by_what_was_measured(
    make_teacher: Make, samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    aligned, crossed = make_teacher("aligned"), make_teacher("crossed", seed=3)
    aligned.weights["text"] = aligned.weights["image"]
    with caplog.at_level(logging.INFO):
        taught = attached(samples, aligned, crossed, weighting=ByPrecision())
    assert "held-out mean average precision" in caplog.text
    assert float(taught.precision[0]) == pytest.approx(1)
    assert 0.1 < float(taught.precision[1]) < 0.8
    narrow = make_teacher("narrow", offset=100.0)
    spread = attached(samples, make_teacher(), narrow, weighting=ByDispersion()).dispersion
    assert float(spread[1]) < 0.1 * float(spread[0])
    assert attached(samples, aligned).precision.isnan().all()


def test_more_samples_than_estimates_need(
    make_teacher: Make, samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill.distillation, "SAMPLE", 5)
    teacher = make_teacher()
    attached(samples, teacher)
    assert len(teacher.asked) == 2 * 5


def test_a_bridge_that_was_trained_here_is_kept(
    make_teacher: Make, samples: Samples, tmp_path: Path
) -> None:
    image, bridge = teachers_of("bridge", make_teacher)
    attached(samples, image, bridge).keep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["bridge.safetensors"]
    loaded = BridgeTeacher(
        name="bridge", image=image, text=bridge.text, dim=4, weights=tmp_path / "bridge.safetensors"
    )
    assert loaded.fingerprint == bridge.fingerprint


def test_the_store_keeps_a_head_for_the_same_recipe_and_data(
    make_teacher: Make, samples: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = teachers_of("bridge", make_teacher)
    attached(samples, *first, store=tmp_path)
    fitted: list[BridgeTeacher] = []
    fit = BridgeTeacher.fit
    monkeypatch.setattr(
        BridgeTeacher, "fit", lambda self, *rows: (fitted.append(self), fit(self, *rows))[1]
    )
    second = teachers_of("bridge", make_teacher)
    attached(samples, *second, store=tmp_path)
    assert not fitted
    assert second[-1].fingerprint == first[-1].fingerprint
    other = BridgeTeacher(
        name="bridge", image=second[-1].image, text=second[-1].text, dim=4, epochs=3
    )
    attached(samples, first[0], other, store=tmp_path)
    assert fitted == [other]


def test_what_is_stored_changes_no_random_number_of_the_training(
    make_teacher: Make, samples: Samples, tmp_path: Path
) -> None:
    drawn = []
    for _ in range(2):  # at first everything is made, then all is there
        teachers = teachers_of("bridge", make_teacher)
        made = distillation(*teachers, store=tmp_path)
        made.attach(samples, "cpu", torch.float32)
        drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[1])


def test_a_bridge_that_is_loaded_is_not_trained_again(
    make_teacher: Make, samples: Samples, tmp_path: Path
) -> None:
    image, bridge = teachers_of("bridge", make_teacher)
    attached(samples, image, bridge)
    expected = bridge.fingerprint
    attached(samples._replace(pairs=samples.pairs.flip(0)[:9]), image, bridge)
    assert bridge.fingerprint == expected


def test_a_bridge_without_captions(make_teacher: Make, samples: Samples, tmp_path: Path) -> None:
    mute = samples._replace(pairs=torch.zeros(0, 2, dtype=torch.int64))
    for store in (None, tmp_path):
        with pytest.raises(TeacherError, match="the data has 0 pictures with captions"):
            attached(mute, *teachers_of("bridge", make_teacher), store=store)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objectives": {}}, "without teachers or objectives: choose distill=none"),
        ({"standardise": "phi"}, r"distill\.standardise='phi': expected one of running, phi_s"),
        ({"teachers": {}}, "without teachers or objectives"),
    ],
)
def test_settings_that_cannot_be(make_teacher: Make, changes: Any, message: str) -> None:
    settings: dict[str, Any] = {
        "teachers": {"own": make_teacher()}, "objectives": ALL, "weighting": Uniform(),
        "standardise": "running", "key_dim": 4, "store": None, "seed": 0,
    }  # fmt: skip
    with pytest.raises(TeacherError, match=message):
        Distillation(**(settings | changes))
    with pytest.raises(TeacherError, match="teacher other calls itself own: name it alike"):
        Distillation(**(settings | {"teachers": {"other": make_teacher()}}))
    with pytest.raises(ValueError, match="no Hadamard matrix of order 9"):
        distillation(make_teacher(dim=9))


def test_embeddings_of_another_width_than_the_teacher_says(
    make_teacher: Make, samples: Samples, tmp_path: Path
) -> None:
    for store in (None, tmp_path):
        teacher = make_teacher(dim=16)
        teacher.encode = make_teacher(dim=8).encode
        with pytest.raises(TeacherError, match=r"\(\d+, 8\), expected \(\d+, 16\): its `dim`"):
            attached(samples, teacher, store=store)


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2", "internvl", "open_clip"])
def test_a_step_lowers_the_loss_of_every_kind_of_teacher(
    kind: str, pictured: Samples, tmp_path: Path, load_teacher: Callable[[str], Any]
) -> None:
    teacher = load_teacher(kind)
    objectives = ALL if len(teacher.modalities) == 2 else FEATURE
    taught, student = attached(pictured, teacher, objectives=objectives, store=tmp_path), Tables()
    optimizer = torch.optim.Adam([*taught.parameters(), *student.parameters()], lr=3e-3)
    values = []
    for _ in range(4):
        losses = taught(student(batch()), batch())
        values.append({name: loss.item() for name, loss in losses.items()})
        optimizer.zero_grad()
        summed(losses).backward()
        optimizer.step()
    totals = [sum(each.values()) for each in values]
    assert totals == sorted(totals, reverse=True)
    assert all(values[-1][name] < values[0][name] for name in objectives)
    assert all(p.grad is None for p in teacher.module.parameters())
