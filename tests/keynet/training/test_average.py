from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from data.datamodule import RequestDataModule
from keynet.training.average import key_weights
from keynet.training.module import KeyModule
from tests.keynet.training.fits import KillAt, KilledError, Rates, trainer

Make = Callable[..., KeyModule]
MakeData = Callable[..., RequestDataModule]
STEPS, SHARE = 8, 0.5  # so that the weights after each of the last four steps count


class Weights(pl.Callback):
    """The key model's weights after each step."""

    def __init__(self) -> None:
        self.after: list[dict[str, Tensor]] = []

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        self.after.append({n: t.clone() for n, t in pl_module.model.state_dict().items()})


@pytest.fixture
def averaged(tmp_path: Path, make_module: Make, make_data: MakeData) -> tuple[KeyModule, Weights]:
    module, weights = make_module(average=SHARE), Weights()
    trainer(tmp_path / "whole", weights).fit(module, datamodule=make_data())
    assert len(weights.after) == STEPS
    return module, weights


def test_weights_are_the_mean_after_the_last_steps(averaged: tuple[KeyModule, Weights]) -> None:
    module, weights = averaged
    for name, tensor in module.model.state_dict().items():
        last = [after[name] for after in weights.after[-4:]]
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, torch.stack(last).mean(0), atol=1e-6, rtol=1e-5)
    weight = "fusion.mlp.0.weight"
    assert not torch.equal(module.model.state_dict()[weight], weights.after[-1][weight])


def test_steps_go_on_from_the_weights_as_they_are(
    tmp_path: Path, make_module: Make, make_data: MakeData, averaged: tuple[KeyModule, Weights]
) -> None:
    plain, weights = make_module(), Weights()
    trainer(tmp_path / "plain", weights).fit(plain, datamodule=make_data())
    assert all(torch.equal(weights.after[-1][n], t) for n, t in averaged[1].after[-1].items())


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
@pytest.mark.parametrize("killed_at", [3, 7])  # before the last four steps, and among them
def test_a_resumed_training_has_the_mean_of_an_uninterrupted_one(
    tmp_path: Path,
    make_module: Make,
    make_data: MakeData,
    averaged: tuple[KeyModule, Weights],
    killed_at: int,
) -> None:
    expected = averaged[0].model.state_dict()
    with pytest.raises(KilledError):
        killed = make_module(average=SHARE)
        trainer(tmp_path, KillAt(killed_at)).fit(killed, datamodule=make_data())
    checkpoint = tmp_path / "checkpoints" / "last.ckpt"
    for _ in range(2):  # the second time it is finished, and only handed over again
        resumed = make_module(average=SHARE, seed=99)
        trainer(tmp_path).fit(
            resumed, datamodule=make_data(), ckpt_path=checkpoint, weights_only=True
        )
        found = resumed.model.state_dict()
        assert not [name for name in expected if not torch.equal(found[name], expected[name])]
    kept = key_weights(torch.load(checkpoint, weights_only=True))
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name], expected[name]) for name in expected)


def test_of_a_training_too_short_to_average_the_last_step_counts(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    module, weights = make_module(average=0.01), Weights()
    trainer(tmp_path, weights, epochs=1).fit(module, datamodule=make_data())
    found = module.model.state_dict()
    assert all(torch.equal(found[n], t) for n, t in weights.after[-1].items())


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_of_several_batches_a_step_the_step_counts_once(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    module, weights = make_module(average=SHARE), Weights()
    accumulating = trainer(tmp_path, weights)
    accumulating.accumulate_grad_batches = 2
    accumulating.fit(module, datamodule=make_data())
    assert len(weights.after) == 2 * 4
    for name, tensor in module.model.state_dict().items():
        if tensor.is_floating_point() and "norm" not in name:  # whose statistics move every batch
            last = torch.stack([weights.after[at][name] for at in (5, 7)])
            torch.testing.assert_close(tensor, last.mean(0), atol=1e-6, rtol=1e-5)


def test_the_mean_is_taken_on_a_gpu_as_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    # Where torch averages several tensors at once, it cannot average counters of batches.
    monkeypatch.setattr(
        "torch.optim.swa_utils._get_foreach_kernels_supported_devices", lambda: ["cpu"]
    )
    trainer(tmp_path).fit(make_module(average=SHARE), datamodule=make_data())


def test_rates_end_where_asked(tmp_path: Path, make_module: Make, make_data: MakeData) -> None:
    found = []
    for final_rate in (None, 0.2):
        rates = Rates()
        trainer(tmp_path / str(final_rate), rates).fit(
            make_module(final_rate=final_rate), datamodule=make_data()
        )
        found.append(torch.tensor(rates.rates))
    peak = found[0].max(0).values
    assert torch.equal(found[0][:2], found[1][:2])  # while they rise
    torch.testing.assert_close(found[1][2:], 0.2 * peak + 0.8 * found[0][2:])


@pytest.mark.parametrize("name", ["average", "final_rate"])
@pytest.mark.parametrize("value", [0, -0.1, 1.5, True, "0.3", float("nan")])
def test_what_is_no_share_is_refused(make_module: Make, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"module.{name}={value!r}: expected a share"):
        make_module(**{name: value})
