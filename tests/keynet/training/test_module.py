from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from data.datamodule import RequestDataModule
from distill.distillation import Distillation
from distill.objectives import Affinity, Feature
from distill.teacher import TeacherOutput
from distill.weighting import KeepWorst
from keynet.training.module import KeyModule
from keynet.types import KeyOutput, Request, Samples, TrainingBatch
from tests.keynet.training.fits import KillAt, KilledError, Rates, trainer

Make = Callable[..., KeyModule]
MakeData = Callable[..., RequestDataModule]


class Constant(nn.Module):
    """A loss of one value, with a gradient."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> Tensor:
        return output.key.sum() * 0 + self.value


def first_batch(data: RequestDataModule) -> TrainingBatch:
    return next(iter(data.train_dataloader()))


@pytest.fixture(scope="module")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, make_module: Make, toy_source: Any
) -> tuple[KeyModule, Rates]:
    data = RequestDataModule(
        source=toy_source, image_size=16, max_tokens=32, long_text="error", vocab_size=300,
        batch_size=16, batches_per_epoch=2, seed=0, num_workers=0, store_stems=True,
    )  # fmt: skip
    module, rates = make_module(), Rates()
    trainer(tmp_path_factory.mktemp("run"), rates).fit(module, datamodule=data)
    return module, rates


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("killed_at", [4, 5])
def test_a_resumed_training_gives_the_weights_of_an_uninterrupted_one(
    tmp_path: Path,
    make_module: Make,
    make_data: MakeData,
    uninterrupted: tuple[KeyModule, Rates],
    killed_at: int,
) -> None:
    with pytest.raises(KilledError):
        trainer(tmp_path, KillAt(killed_at)).fit(make_module(), datamodule=make_data())
    checkpoint = tmp_path / "checkpoints" / "last.ckpt"
    resumed = make_module(seed=99)  # whatever it was made with comes from the checkpoint
    again = trainer(tmp_path)
    again.fit(resumed, datamodule=make_data(), ckpt_path=checkpoint, weights_only=True)
    assert again.global_step == 8
    expected = uninterrupted[0].state_dict()
    found = resumed.state_dict()
    assert found.keys() == expected.keys()
    assert not [name for name in expected if not torch.equal(found[name], expected[name])]


def test_stored_outputs_of_the_frozen_part_train_as_its_pictures_do(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    found = []
    for store_stems in (True, False):
        data, module = make_data(store_stems=store_stems), make_module()
        made = trainer(tmp_path / str(store_stems), epochs=1)
        made.fit(module, datamodule=data)
        assert first_batch(data).images.dtype == (torch.bfloat16 if store_stems else torch.uint8)
        found.append(float(made.callback_metrics["loss"]))
    assert found[0] == pytest.approx(found[1], rel=0.01)


def test_another_seed_of_the_batches_gives_other_weights(
    tmp_path: Path,
    make_module: Make,
    make_data: MakeData,
    uninterrupted: tuple[KeyModule, Rates],
) -> None:
    other = make_module()
    trainer(tmp_path).fit(other, datamodule=make_data(seed=1))
    weight = "model.fusion.mlp.0.weight"
    assert not torch.equal(other.state_dict()[weight], uninterrupted[0].state_dict()[weight])


def test_rates_rise_then_fall_as_a_cosine(uninterrupted: tuple[KeyModule, Rates]) -> None:
    share = torch.tensor(uninterrupted[1].rates)
    assert share.shape[0] == 8
    share = share / torch.tensor([1e-3, 1e-3, 1e-2, 1e-2])
    angle = torch.arange(6) / 6 * torch.pi
    expected = torch.cat([torch.tensor([0.5, 1.0]), 0.5 * (1 + torch.cos(angle))])
    torch.testing.assert_close(share, expected[:, None].expand(8, 4), atol=1e-5, rtol=1e-4)


def test_training_moves_what_is_trained_alone(
    make_module: Make, uninterrupted: tuple[KeyModule, Rates]
) -> None:
    before, after = make_module().state_dict(), uninterrupted[0].state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert {"model.image_encoder.frozen.weight", "model.image_encoder.frozen.bias"} <= same
    # Without absent modalities' own vector only what no batch needs may stay: nothing here.
    assert same == {
        "model.image_encoder.frozen.weight", "model.image_encoder.frozen.bias",
        "model.hash_head.linear.weight", "model.hash_head.rotation",
    }  # fmt: skip


def test_training_lowers_the_loss(
    make_module: Make, make_data: MakeData, uninterrupted: tuple[KeyModule, Rates]
) -> None:
    batch = first_batch(make_data())
    values = []
    for module in (make_module(), uninterrupted[0]):
        with torch.no_grad():
            output = module.model.eval()(*batch[:6])
            values.append(float(module.losses["group_contrast"](output, batch)))
        module.train()
    assert values[1] < values[0]


def test_the_loss_is_the_weighted_sum(
    make_module: Make, make_data: MakeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {
        "a": {"weight": 2.0, "loss": Constant(3.0)},
        "b": {"weight": 0.5, "loss": Constant(1.0)},
    }
    module, logged = make_module(losses=losses), {}
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.update({name: value.item()}))
    loss = module.training_step(first_batch(make_data()), 0)
    assert loss.item() == pytest.approx(6.5)
    assert logged == pytest.approx({"loss/a": 3.0, "loss/b": 1.0, "loss": 6.5})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_the_training(
    tmp_path: Path, make_module: Make, make_data: MakeData, value: float
) -> None:
    module = make_module(losses={"bad": {"weight": 1.0, "loss": Constant(value)}})
    with pytest.raises(FloatingPointError, match=rf"the loss is {value} at step 0; lower"):
        trainer(tmp_path).fit(module, datamodule=make_data())
    assert not list(tmp_path.glob("checkpoints/*.ckpt"))


def test_parameter_groups(make_module: Make) -> None:
    module = make_module()
    module._trainer = SimpleNamespace(estimated_stepping_batches=100)  # type: ignore[assignment]
    optimizer = module.configure_optimizers()["optimizer"]
    name_of = {id(p): name for name, p in module.named_parameters()}
    seen: dict[str, dict[str, Any]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert name_of[id(parameter)] not in seen
            seen[name_of[id(parameter)]] = group
    parameter_of = dict(module.named_parameters())
    trained = {name for name, p in parameter_of.items() if p.requires_grad}
    assert set(seen) == trained
    assert not [name for name in seen if "frozen" in name]
    for name, group in seen.items():
        # The schedule starts at 1 / 25 of the peak: the warm-up is a quarter of 100 steps.
        peak = 1e-3 if "image_encoder" in name else 1e-2
        assert group["lr"] == pytest.approx(peak / 25), name
        # Not decayed: scalars and vectors (biases, norms), and what is looked up or added.
        table = "embedding" in name or "position" in name or name.endswith(".start")
        plain = table or parameter_of[name].ndim < 2
        assert (group["weight_decay"] == 0) == plain, name


class Hashing(nn.Module):
    """A teacher of one's own, with weights that must stay out of all: random rows by content."""

    dim, temperature, modalities = 8, 0.1, ("image", "text")

    def __init__(self, name: str, seed: int) -> None:
        super().__init__()
        self.name, self.fingerprint = name, f"{seed:016d}"
        self.seed = seed
        self.inner = nn.Linear(8, 8)

    def encode(self, requests: Sequence[Request]) -> TeacherOutput:
        found = {}
        for modality in self.modalities:
            rows = torch.zeros(len(requests), self.dim)
            for row, request in enumerate(requests):
                content = getattr(request, modality)
                if content is not None:
                    number = zlib.crc32(str(content).encode()) + self.seed
                    rows[row] = torch.randn(8, generator=torch.Generator().manual_seed(number))
            found[modality] = rows
        return TeacherOutput(**found)

    def to(self, device: Any, dtype: Any) -> None:  # type: ignore[override]
        """Nothing to move."""


def distilled(make_module: Make, store: Path | None, seed: int = 0) -> KeyModule:
    torch.manual_seed(seed)
    affinity = Affinity(student_temperature=0.07, temperature=2.0)
    distillation = Distillation(
        teachers={f"t{n}": Hashing(f"t{n}", 10 * n) for n in range(4)},
        objectives={
            "affinity": {"weight": 1.0, "objective": affinity},
            "feature": {"weight": 0.5, "objective": Feature()},
        },
        weighting=KeepWorst(), standardise="running", key_dim=8, store=store, seed=0,
    )  # fmt: skip
    return make_module(seed, distillation=distillation)


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_resumed_distillation_gives_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, make_module: Make, make_data: MakeData, uninterrupted: tuple[KeyModule, Rates]
) -> None:
    store = tmp_path / "teachers"
    whole = distilled(make_module, store)
    trainer(tmp_path / "whole").fit(whole, datamodule=make_data())
    with pytest.raises(KilledError):
        killed = trainer(tmp_path / "run", KillAt(5))
        killed.fit(distilled(make_module, store), datamodule=make_data())
    resumed = distilled(make_module, store, seed=99)
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    again = trainer(tmp_path / "run")
    again.fit(resumed, datamodule=make_data(), ckpt_path=checkpoint, weights_only=True)
    assert again.global_step == 8
    expected, found = whole.state_dict(), resumed.state_dict()
    assert int(expected["distillation.batches"]) == 8
    assert found.keys() == expected.keys()
    differing = [
        name for name in expected if not found[name].equal(expected[name])
        and not name.endswith("distillation.precision")
    ]  # fmt: skip
    assert not differing
    assert found["distillation.precision"].isnan().all()  # nothing needed it
    # The teachers have changed the student, and its other losses alone would not have.
    weight = "model.fusion.mlp.0.weight"
    assert not expected[weight].equal(uninterrupted[0].state_dict()[weight])


def test_teachers_are_in_no_state_and_no_optimizer_and_projectors_are_in_both(
    make_module: Make,
) -> None:
    module = distilled(make_module, None)
    module._trainer = SimpleNamespace(estimated_stepping_batches=10)  # type: ignore[assignment]
    optimizer = module.configure_optimizers()["optimizer"]
    optimised = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert len(module.teachers) == 4
    for teacher in module.teachers:
        assert not {id(p) for p in teacher.parameters()} & optimised.keys()
    state = module.state_dict()
    assert not [name for name in state if "inner" in name]
    projectors = dict(module.distillation.projectors.named_parameters())
    assert len(projectors) == 4 * 3 * 4  # teachers; image, text, described; two layers
    for name, parameter in projectors.items():
        assert f"distillation.projectors.{name}" in state
        group = optimised[id(parameter)]
        assert group["initial_lr"] == 1e-2  # that of all but the image encoder
        assert group["weight_decay"] == (0.05 if name.endswith("weight") else 0)


def test_without_distillation_there_are_no_teachers(make_module: Make) -> None:
    assert make_module().teachers == []


class Recorder(nn.Module):
    """Stands for a distillation of two constant losses."""

    def __init__(self) -> None:
        super().__init__()
        self.attached: list[Any] = []
        self.kept: list[str] = []

    def attach(self, samples: Samples, device: torch.device, dtype: torch.dtype) -> None:
        self.attached.append((samples, device.type, dtype))

    def keep(self, folder: str) -> None:
        self.kept.append(folder)

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> dict[str, Tensor]:
        zero = output.key.sum() * 0
        return {"one": zero + 4.0, "two": zero + 0.5}


def test_losses_of_the_distillation_are_added_and_logged(
    make_module: Make, make_data: MakeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {"a": {"weight": 2.0, "loss": Constant(3.0)}}
    module, logged = make_module(losses=losses, distillation=Recorder()), {}
    monkeypatch.setattr(module, "log", lambda name, value, **_: logged.update({name: value.item()}))
    loss = module.training_step(first_batch(make_data()), 0)
    assert loss.item() == pytest.approx(10.5)
    assert logged == pytest.approx(
        {"loss/a": 3.0, "loss/distill_one": 4.0, "loss/distill_two": 0.5, "loss": 10.5}
    )


@pytest.mark.parametrize(
    ("precision", "dtype"), [("32-true", torch.float32), ("bf16-mixed", torch.bfloat16)]
)
def test_teachers_get_the_samples_of_the_training_and_its_precision(
    tmp_path: Path, make_module: Make, make_data: MakeData, precision: Any, dtype: torch.dtype
) -> None:
    recorder, data = Recorder(), make_data()
    fitting = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=1, precision=precision, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path,
    )  # fmt: skip
    fitting.fit(make_module(distillation=recorder), datamodule=data)
    assert recorder.attached == [(data.samples, "cpu", dtype)]
    assert recorder.kept == [str(tmp_path)]  # beside the run, at its end


def test_no_losses() -> None:
    with pytest.raises(ValueError, match="no losses: give at least one under loss"):
        KeyModule(
            model=nn.Identity(), losses={}, learning_rate=1.0, image_learning_rate=1.0,
            weight_decay=0.0, warmup_share=0.0,
        )  # fmt: skip


@pytest.mark.parametrize("chunk", [0, 1, -3, 2.5, "8", True])
def test_a_chunk_that_is_none_is_refused(make_module: Make, chunk: Any) -> None:
    with pytest.raises(ValueError, match=r"module\.chunk=.*expected at least 2 rows, or null"):
        make_module(chunk=chunk)


def test_chunks_train(tmp_path: Path, make_module: Make, make_data: MakeData) -> None:
    made, module = trainer(tmp_path, epochs=1), make_module(chunk=5)
    before = {name: value.clone() for name, value in module.named_parameters()}
    made.fit(module, datamodule=make_data())
    moved = [n for n, value in module.named_parameters() if not torch.equal(value, before[n])]
    assert {"model.image_encoder.conv.weight", "model.fusion.mlp.0.weight"} < {*moved}
