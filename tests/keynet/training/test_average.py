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
from tests.keynet.training.fits import KillAt, KilledError, trainer

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


@pytest.mark.parametrize(
    ("options", "wrong"),
    [({"average": 1.5}, "average=1.5"), ({"average": -0.1}, "average=-0.1"),
     ({"final_rate": 2.0}, "final_rate=2.0"), ({"final_rate": -1.0}, "final_rate=-1.0")],
)  # fmt: skip
def test_shares_out_of_range_are_refused(
    make_module: Make, options: dict[str, float], wrong: str
) -> None:
    with pytest.raises(ValueError, match=f"module.{wrong}: expected a share"):
        make_module(**options)
