from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from aligners.diffusion_prior import METADATA, DiffusionPrior
from aligners.losses import noise_error, retrieval_consistency

DIM, WIDTH = 12, 8  # of keys, of images and texts
SETTINGS = {"steps": 150, "batch_size": 64, "learning_rate": 8e-3, "seed": 0}


def small(**changes: Any) -> DiffusionPrior:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "key_dim": DIM, "condition_dim": WIDTH, "num_layers": 1, "num_heads": 2, "head_dim": 16,
    }  # fmt: skip
    return DiffusionPrior(**(settings | changes))


def requests(count: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Keys that are a linear function of image and text; every fourth has no text."""
    fixed = torch.Generator().manual_seed(7)
    to_key = torch.randn(2 * WIDTH, DIM, generator=fixed)
    generator = torch.Generator().manual_seed(seed)
    image = F.normalize(torch.randn(count, WIDTH, generator=generator), dim=-1)
    text = F.normalize(torch.randn(count, WIDTH, generator=generator), dim=-1)
    text[::4] = 0
    return F.normalize(torch.cat([image, text], 1) @ to_key, dim=-1), image, text


@pytest.fixture(scope="module")
def trained() -> tuple[DiffusionPrior, dict[str, float]]:
    prior = small()
    return prior, prior.fit(*requests(600), **SETTINGS)


class Stub(nn.Module):
    """A transformer that predicts a constant and keeps what it was asked."""

    def __init__(self, predicted: Tensor) -> None:
        super().__init__()
        self.predicted = predicted

    def forward(
        self, noised: Tensor, steps: Tensor, conditions: Tensor, return_dict: bool
    ) -> tuple[Tensor]:
        self.asked = noised, steps, conditions
        return (self.predicted.unsqueeze(1),)


def stubbed(predicted: Tensor) -> tuple[DiffusionPrior, Stub]:
    prior, stub = small(), Stub(predicted)
    prior.transformer = stub  # type: ignore[assignment]
    return prior, stub


def test_losses_by_hand() -> None:
    key = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    augmented = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    assert retrieval_consistency(key, augmented).item() == pytest.approx(2**0.5 / 2)
    noise = torch.tensor([[1.0, -2.0], [0.5, 0.0]])
    assert noise_error(noise, torch.zeros(2, 2)).item() == pytest.approx((3 + 0.5) / 2)


def test_consistency_of_equal_keys_has_a_finite_gradient() -> None:
    key = F.normalize(torch.ones(2, 4), dim=-1).requires_grad_()
    retrieval_consistency(key, key.detach()).backward()
    assert key.grad is not None
    assert key.grad.isfinite().all()


def test_the_formula_by_hand() -> None:
    keys, image, text = requests(5)
    predicted = torch.randn(5, DIM, generator=torch.Generator().manual_seed(1))
    prior, stub = stubbed(predicted)
    t = torch.tensor([0.001, 0.25, 0.5, 0.75, 0.9995])
    found = prior.augment(keys, image, text, t, torch.Generator().manual_seed(2))
    noised, steps, conditions = stub.asked
    noise = torch.randn(5, DIM, generator=torch.Generator().manual_seed(2))
    root = DIM**0.5
    for row, share in enumerate(t.tolist()):
        expected = (1 - share) * root * keys[row] + share * noise[row]
        torch.testing.assert_close(noised[row], expected)
        moved = root * keys[row] - share * predicted[row]
        torch.testing.assert_close(found[row], moved / moved.norm())
    assert steps.tolist() == [1, 250, 500, 750, 999]
    torch.testing.assert_close(conditions, WIDTH**0.5 * torch.stack([image, text], 1))


def test_with_the_true_noise_it_is_the_key_under_gaussian_noise() -> None:
    keys, image, text = requests(5)
    noise = torch.randn(5, DIM, generator=torch.Generator().manual_seed(2))
    prior, _ = stubbed(noise)
    t = torch.full((5,), 0.4)
    found = prior.augment(keys, image, text, t, torch.Generator().manual_seed(2))
    torch.testing.assert_close(found, F.normalize(DIM**0.5 * keys - 0.4 * noise, dim=-1))


def test_the_key_a_prediction_stands_for_moves_the_augmented_key() -> None:
    keys, image, text = requests(5)
    guess = requests(5, seed=1)[0]
    noise = torch.randn(5, DIM, generator=torch.Generator().manual_seed(2))
    t, root = torch.full((5,), 0.4), DIM**0.5
    predicted = (small().noised(keys, noise, t) - 0.6 * root * guess) / 0.4
    prior, _ = stubbed(predicted)
    found = prior.augment(keys, image, text, t, torch.Generator().manual_seed(2))
    expected = root * keys - 0.4 * noise + 0.6 * root * (guess - keys)
    torch.testing.assert_close(found, F.normalize(expected, dim=-1))


def test_training_losses_by_hand() -> None:
    keys, image, text = requests(6)
    predicted = torch.randn(6, DIM, generator=torch.Generator().manual_seed(1))
    prior, _ = stubbed(predicted)
    losses = prior.training_loss(keys, image, text, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    noise, t = torch.randn(6, DIM, generator=generator), torch.rand(6, generator=generator)
    moved = F.normalize(DIM**0.5 * keys - t[:, None] * predicted, dim=-1)
    assert set(losses) == {"consistency", "noise"}
    torch.testing.assert_close(losses["consistency"], (keys - moved).square().sum(1).sqrt().mean())
    torch.testing.assert_close(losses["noise"], (noise - predicted).abs().sum(1).mean())


def test_augmented_keys_are_unit_and_finite_with_absent_modalities() -> None:
    keys, image, text = requests(8)
    image[1::4] = 0
    prior = small()
    found = prior.augment(keys, image, text, torch.full((8,), 0.3))
    assert found.shape == (8, DIM)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(8))
    assert not torch.equal(found, keys)
    losses = prior.training_loss(keys, image, torch.zeros_like(text))
    sum(losses.values()).backward()  # type: ignore[union-attr]
    gradients = [p.grad for p in prior.parameters() if p.grad is not None]
    assert len(gradients) > 10
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_every_trainable_weight_gets_a_gradient() -> None:
    prior = small()
    losses = prior.training_loss(*requests(8), torch.Generator().manual_seed(0))
    (losses["consistency"] + losses["noise"]).backward()
    without = [name for name, p in prior.named_parameters() if p.grad is None]
    assert without == ["transformer.clip_mean", "transformer.clip_std"]
    assert not prior.transformer.clip_mean.requires_grad
    assert not prior.transformer.clip_std.requires_grad


def test_rows_do_not_mix_and_both_modalities_and_t_are_seen() -> None:
    prior = small()
    keys, image, text = requests(4)
    noised, t = DIM**0.5 * keys, torch.full((4,), 0.5)
    before = prior(noised, image, text, t)
    assert before.shape == (4, DIM)
    for changed in range(4):
        parts = [noised.clone(), image.clone(), text.clone(), t.clone()]
        parts[changed][2] = -parts[changed][2] if changed < 3 else 0.9
        differs = (prior(*parts) - before).abs().amax(1) > 1e-5
        assert differs.tolist() == [False, False, True, False]
    assert not torch.allclose(prior(noised, text, image, t), before)  # no bag of two


def test_the_gradient_is_of_the_key_as_it_stands_in_the_formula() -> None:
    keys, image, text = requests(4)
    keys.requires_grad_()
    image.requires_grad_()
    prior = small()
    t = torch.full((4,), 0.3)
    found = prior.augment(keys, image, text, t, torch.Generator().manual_seed(0))
    weights = torch.randn(4, DIM, generator=torch.Generator().manual_seed(5))
    (found * weights).sum().backward()
    assert image.grad is None
    assert all(p.grad is None for p in prior.parameters())
    # d normalize(u)/du = (I - n n')/|u| of u = sqrt(D) k - t e_hat, e_hat constant
    with torch.no_grad():
        noise = torch.randn(4, DIM, generator=torch.Generator().manual_seed(0))
        predicted = prior(prior.noised(keys, noise, t), image, text, t)
        length = (DIM**0.5 * keys - 0.3 * predicted).norm(dim=1, keepdim=True)
        across = weights - (weights * found).sum(1, keepdim=True) * found
        torch.testing.assert_close(keys.grad, DIM**0.5 / length * across)


def test_the_conditions_matter_and_noise_is_predicted(
    trained: tuple[DiffusionPrior, dict[str, float]],
) -> None:
    prior, figures = trained
    assert set(figures) == {"noise_error", "shuffled_error", "zero_error", "consistency"}
    assert figures["zero_error"] == pytest.approx((2 / torch.pi) ** 0.5, rel=0.1)
    assert figures["noise_error"] < 0.85 * figures["shuffled_error"]
    assert figures["noise_error"] < 0.7 * figures["zero_error"]
    new = prior.measure(*requests(200, seed=1), torch.Generator().manual_seed(0))
    assert new["noise_error"] < 0.85 * new["shuffled_error"]


def prior_is_training(prior: nn.Module) -> bool:
    return any(module.training for module in prior.modules())


def losses_of(prior: DiffusionPrior) -> dict[str, float]:
    with torch.no_grad():
        found = prior.training_loss(*requests(400, seed=2), torch.Generator().manual_seed(9))
    return {name: value.item() for name, value in found.items()}


def test_both_losses_fall_where_both_weigh_and_are_rivals(
    trained: tuple[DiffusionPrior, dict[str, float]],
) -> None:
    prior = small()
    before, alone = losses_of(prior), losses_of(trained[0])
    figures = prior.fit(*requests(600), **SETTINGS, consistency_weight=10)
    after = losses_of(prior)
    assert after["noise"] < 0.8 * before["noise"]
    assert after["consistency"] < 0.9 * before["consistency"]
    assert figures["noise_error"] < 0.95 * figures["shuffled_error"]
    # With a weight of 1 the noise is found, and found noise is longer than an untrained guess.
    assert alone["noise"] < after["noise"]
    assert alone["consistency"] > before["consistency"]


def test_training_is_determined_by_its_seed_alone() -> None:
    data, short = requests(60), SETTINGS | {"steps": 5}
    torch.manual_seed(0)
    prior, other = small(), small()
    figures = prior.fit(*data, **short)
    state = torch.get_rng_state()
    torch.manual_seed(123)
    assert other.fit(*data, **short) == figures
    for name, tensor in prior.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
    assert other.fit(*data, **(short | {"seed": 1})) != figures
    torch.set_rng_state(state)


def test_training_leaves_the_global_generator_alone() -> None:
    prior = small()
    before = torch.get_rng_state()
    prior.fit(*requests(60), **(SETTINGS | {"steps": 2}))
    assert torch.equal(torch.get_rng_state(), before)


def test_progress_is_logged_every_quarter(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="aligners.diffusion_prior"):
        small().fit(*requests(60), **(SETTINGS | {"steps": 8}))
    steps = [record.getMessage().split(",")[0] for record in caplog.records]
    assert steps == [f"prior: step {step} of 8" for step in (1, 3, 5, 7, 8)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 12}, "12 keys to train a prior on: expected at least 20"),
        ({"text": torch.zeros(29, WIDTH)}, "text has 29 rows beside 30 keys"),
        ({"image": torch.full((30, WIDTH), float("nan"))}, "image has rows that are not finite"),
        ({"text": torch.zeros(30, WIDTH + 1)}, "do not fit a prior"),
    ],
)
def test_what_cannot_be_trained_on(change: dict[str, Any], message: str) -> None:
    keys, image, text = requests(change.pop("count", 30))
    parts = {"keys": keys, "image": image, "text": text} | change
    with pytest.raises(ValueError, match=message):
        small().fit(**parts, **(SETTINGS | {"steps": 1}))


@pytest.mark.parametrize("t", [0.0, 1.0, -0.1, float("nan")])
def test_t_is_within_0_and_1(t: float) -> None:
    with pytest.raises(ValueError, match=r"expected within \(0, 1\)"):
        small().augment(*requests(4), torch.full((4,), t))


@pytest.mark.parametrize("change", [{"key_dim": 0}, {"num_layers": 1.5}, {"num_heads": True}])
def test_wrong_hyperparameters(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(change))}=.*expected a whole number"):
        small(**change)


def test_the_defaults_are_small() -> None:
    prior = DiffusionPrior(key_dim=256)
    assert prior.condition_dim == 256
    count = sum(p.numel() for p in prior.parameters())
    assert 1_000_000 < count < 5_000_000


def test_a_saved_prior_is_the_same(
    trained: tuple[DiffusionPrior, dict[str, float]], tmp_path: Path
) -> None:
    prior = trained[0]
    prior.save(tmp_path / "prior.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["prior.safetensors"]
    loaded = DiffusionPrior.load(tmp_path / "prior.safetensors")
    assert loaded.settings == prior.settings and loaded.of is None
    assert not prior_is_training(loaded)
    assert set(loaded.state_dict()) == set(prior.state_dict())
    data, t = requests(9), torch.full((9,), 0.3)
    found = [p.augment(*data, t, torch.Generator().manual_seed(0)) for p in (prior, loaded)]
    assert torch.equal(*found)


def test_it_keeps_whose_keys_it_is_of(tmp_path: Path) -> None:
    prior = small()
    prior.of = "0123456789abcdef"
    prior.save(tmp_path / "prior.safetensors")
    assert DiffusionPrior.load(tmp_path / "prior.safetensors").of == prior.of


def rewritten(path: Path, **changes: Any) -> None:
    """Save a prior at ``path`` and write its file anew, with a change."""
    small().save(path)
    state = load_file(path) | changes.get("state", {})
    for name in changes.get("without", ()):
        del state[name]
    save_file(
        state, path, metadata=changes.get("metadata", {METADATA: json.dumps(small().settings)})
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": {}}, "is not of a prior"),
        ({"metadata": {METADATA: "{"}}, "broken metadata"),
        ({"metadata": {METADATA: "[]"}}, "broken metadata"),
        ({"metadata": {METADATA: '{"key_dim": -3}'}}, "broken metadata .*key_dim=-3"),
        ({"metadata": {METADATA: '{"key_dim": 12}'}}, "do not fit .*num_layers.*: transformer"),
        ({"without": ["transformer.proj_in.bias"]}, "do not fit .*: transformer.proj_in.bias$"),
        ({"state": {"more": torch.zeros(2)}}, "do not fit .*: more$"),
        (
            {"state": {"transformer.proj_in.bias": torch.full((32,), float("inf"))}},
            "transformer.proj_in.bias of prior .* is not finite",
        ),
    ],
)
def test_a_file_that_does_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "prior.safetensors"
    rewritten(path)
    DiffusionPrior.load(path)
    rewritten(path, **changes)
    with pytest.raises(ValueError, match=message):
        DiffusionPrior.load(path)


def test_a_missing_or_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "prior.safetensors"
    with pytest.raises(ValueError, match=r"prior .*prior.safetensors cannot be read"):
        DiffusionPrior.load(path)
    small().save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"prior .*prior.safetensors cannot be read"):
        DiffusionPrior.load(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="cannot be read"):
        DiffusionPrior.load(path)
