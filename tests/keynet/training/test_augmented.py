"""What ``KeyModule`` trains besides losses of a batch: augmented keys, parts, weighed losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from aligners.augment import AugmentedContrast, GaussianKeys, PriorKeys
from aligners.low_rank_adapter import LowRankAdapter
from data.datamodule import RequestDataModule
from keynet.training.module import PRIOR, KeyModule
from keynet.training.start import StartError

Make = Callable[..., KeyModule]
MakeData = Callable[..., RequestDataModule]


def fit(
    module: KeyModule,
    data: RequestDataModule,
    folder: Path,
    epochs: int = 2,
    checkpoint: Path | None = None,
) -> pl.Trainer:
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=epochs, logger=False, default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    return trainer


def finished(run: Path, module: KeyModule, data: RequestDataModule) -> str:
    """Write of a run what others start from."""
    (run / "checkpoints").mkdir(parents=True)
    (run / "export").mkdir()
    torch.save({"state_dict": module.state_dict()}, run / "checkpoints" / "last.ckpt")
    (run / "export" / "tokenizer.json").write_text(data.preprocessor.tokenizer_json)
    return str(run)


def gaussian(weight: float) -> dict[str, Any]:
    loss = AugmentedContrast(temperature=0.07)
    return {"keys": GaussianKeys(strength=0.3), "loss": loss, "weight": weight}


def changed(module: KeyModule, other: KeyModule) -> set[str]:
    """First names of the parts of the key model whose weights differ."""
    pairs = zip(module.model.named_parameters(), other.model.named_parameters(), strict=True)
    return {n.split(".")[0] for (n, one), (_, two) in pairs if not torch.equal(one, two)}


def test_augmented_keys_add_their_weighted_loss(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    trainer = fit(make_module(augment=gaussian(2.0)), make_data(), tmp_path, epochs=1)
    logged = {n: float(v) for n, v in trainer.callback_metrics.items() if n.startswith("loss")}
    parts = logged["loss/group_contrast"] + 0.1 * logged["loss/code_affinity"]
    assert logged["loss/augment"] > 0
    assert logged["loss"] == pytest.approx(parts + 2.0 * logged["loss/augment"], rel=1e-5)


def test_statistics_of_codes_are_those_of_plain_keys(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    """With a weight of 0 the same training as without."""
    plain, with_noise = make_module(), make_module(augment=gaussian(0.0))
    fit(plain, make_data(), tmp_path, epochs=1)
    fit(with_noise, make_data(), tmp_path, epochs=1)
    found, expected = with_noise.model.state_dict(), plain.model.state_dict()
    assert all(torch.allclose(found[n].float(), expected[n].float(), atol=1e-6) for n in expected)


def with_prior(steps: int) -> dict[str, Any]:
    fit = {"steps": steps, "batch_size": 16, "learning_rate": 1e-3}
    keys = PriorKeys(prior=None, strength=0.3, fit=fit)
    return {"keys": keys, "loss": AugmentedContrast(temperature=0.07), "weight": 1.0}


def test_a_prior_is_fitted_once_kept_beside_the_run_and_out_of_the_checkpoint(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    run = finished(tmp_path / "run", make_module(), make_data())
    module = make_module(augment=with_prior(2), start_from=run)
    checkpoint = tmp_path / "last.ckpt"
    fit(module, make_data(), tmp_path, epochs=1).save_checkpoint(checkpoint)
    written = (tmp_path / PRIOR).read_bytes()
    assert not [name for name in module.state_dict() if "prior" in name or "transformer" in name]
    again = make_module(augment=with_prior(3), start_from=run)  # a run that goes on
    fit(again, make_data(), tmp_path, checkpoint=checkpoint)
    assert (tmp_path / PRIOR).read_bytes() == written


def test_a_prior_of_other_weights_is_not_taken(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    run = finished(tmp_path / "run", make_module(), make_data())
    other = finished(tmp_path / "other", make_module(seed=1), make_data())
    checkpoint = tmp_path / "last.ckpt"
    module = make_module(augment=with_prior(2), start_from=other)
    fit(module, make_data(), tmp_path, epochs=1).save_checkpoint(checkpoint)
    theirs = (tmp_path / PRIOR).read_bytes()
    with pytest.raises(StartError, match=rf"{PRIOR} is not of the weights .*; remove it"):
        resumed = make_module(augment=with_prior(2), start_from=run)
        fit(resumed, make_data(), tmp_path, checkpoint=checkpoint)
    assert (tmp_path / PRIOR).read_bytes() == theirs
    fit(make_module(augment=with_prior(2), start_from=run), make_data(), tmp_path, epochs=1)
    assert (tmp_path / PRIOR).read_bytes() != theirs  # a run that begins fits its own


def test_a_prior_of_untrained_keys_is_an_error(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    with pytest.raises(StartError, match=r"give module\.start_from=RUN"):
        fit(make_module(augment=with_prior(2)), make_data(), tmp_path)


@pytest.mark.filterwarnings("ignore:Found .* in eval mode")
def test_only_what_is_named_is_trained(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    run = finished(tmp_path / "run", make_module(), make_data())

    def made() -> KeyModule:
        module = make_module()
        module.model.image_adapter = LowRankAdapter(dim=12, rank=2)
        return KeyModule(
            model=module.model,
            losses={n: {"weight": 1.0, "loss": m} for n, m in module.losses.items()},
            start_from=run, trained=["image_adapter"], learning_rate=1e-2, image_learning_rate=1e-3,
            weight_decay=0.0, warmup_share=0.1,
        )  # fmt: skip

    torch.manual_seed(0)
    before = made()
    torch.manual_seed(0)
    after = made()
    fit(after, make_data(), tmp_path)
    assert changed(before, after) <= {"image_adapter"}
    assert after.model.image_adapter.up.weight.any()
    buffers = zip(before.model.named_buffers(), after.model.named_buffers(), strict=True)
    assert not [name for (name, one), (_, two) in buffers if not torch.equal(one, two)]


def test_parts_of_a_model_that_is_not_trained_are_an_error(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    with pytest.raises(StartError, match=r"trained=\['aligner'\] .* give .*module\.start_from=RUN"):
        fit(make_module(trained=["aligner"]), make_data(), tmp_path)


def test_gradnorm_weighs_the_losses_and_is_resumed(
    tmp_path: Path, make_module: Make, make_data: MakeData
) -> None:
    module = make_module(gradnorm=0.3)
    fit(module, make_data(), tmp_path)
    weights = module.state_dict()["gradnorm.weights"]
    assert weights.sum().item() == pytest.approx(2.0, abs=1e-5)
    assert not torch.equal(weights, torch.ones(2))


def test_gradnorm_with_nothing_trained_of_the_aligner_is_an_error(make_module: Make) -> None:
    with pytest.raises(ValueError, match=r"module\.gradnorm=0\.3 .* module\.trained"):
        make_module(gradnorm=0.3, trained=["fusion"])
    make_module(gradnorm=0.3, trained=["fusion", "aligner.projections.text"])
