from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn

from aligners.augment import AugmentedContrast, GaussianKeys, PriorKeys
from aligners.diffusion_prior import DiffusionPrior

CONF = Path(__file__).parents[2] / "conf/augment"
DIM = 16


def rows(count: int, *, dim: int = DIM, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=generator), dim=-1)


def batch(count: int) -> tuple[Tensor, Tensor, Tensor]:
    image, text = rows(count, seed=1), rows(count, seed=2)
    image[0], text[1] = 0, 0
    return rows(count), image, text


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    prior = DiffusionPrior(key_dim=DIM, num_layers=1, num_heads=2, head_dim=16)
    path = tmp_path_factory.mktemp("prior") / "prior.safetensors"
    prior.save(path)
    return path


@pytest.fixture(params=["gaussian", "prior"])
def keys(request: pytest.FixtureRequest, path: Path) -> nn.Module:
    if request.param == "gaussian":
        return GaussianKeys(strength=0.3)
    return PriorKeys(prior=path, strength=0.3)


class TrueNoise(nn.Module):
    """A transformer that knows the noise: z_t = (1 - t) * k + t * e, solved for e."""

    def __init__(self, key: Tensor, t: Tensor) -> None:
        super().__init__()
        self.key, self.t = DIM**0.5 * key, t.unsqueeze(-1)

    def forward(
        self, noised: Tensor, steps: Tensor, conditions: Tensor, return_dict: bool
    ) -> tuple[Tensor]:
        return (((noised - (1 - self.t) * self.key) / self.t).unsqueeze(1),)


def test_augmented_keys_are_unit_near_and_other(keys: nn.Module) -> None:
    torch.manual_seed(11)
    key, image, text = batch(64)
    found = keys(key, image, text)
    assert found.shape == key.shape
    torch.testing.assert_close(found.norm(dim=1), torch.ones(64))
    cosine = (found * key).sum(1)
    assert (cosine < 1 - 1e-7).float().mean() > 0.9
    assert cosine.min() > 0.7  # at most 0.3 of noise as long as a key, give or take


def test_draws_are_of_the_global_generator(keys: nn.Module) -> None:
    data = batch(8)
    torch.manual_seed(3)
    first, second = keys(*data), keys(*data)
    torch.manual_seed(3)
    assert torch.equal(keys(*data), first)
    assert not torch.equal(first, second)


def test_nothing_of_it_is_in_a_checkpoint_or_trained(keys: nn.Module) -> None:
    assert keys.state_dict() == {}
    assert list(keys.parameters()) == []
    assert list(keys.buffers()) == []


def test_the_gradient_flows_to_the_key_alone(keys: nn.Module) -> None:
    data = [part.requires_grad_() for part in batch(6)]
    torch.manual_seed(0)
    (keys(*data) * rows(6, seed=4)).sum().backward()
    assert data[0].grad is not None
    assert data[0].grad.isfinite().all()
    assert data[0].grad.abs().sum(1).min() > 0
    assert data[1].grad is None
    assert data[2].grad is None


def test_a_held_prior_is_frozen(path: Path) -> None:
    prior = DiffusionPrior.load(path).train()
    keys = PriorKeys(prior=None, strength=0.3)
    assert keys.lacks_prior
    keys.adopt(prior)
    keys.train()
    assert not keys.lacks_prior
    assert not prior.training
    assert not any(p.requires_grad for p in prior.parameters())
    loaded = PriorKeys(prior=path, strength=0.3)
    found = []
    for augmentation in (keys, loaded):
        torch.manual_seed(0)
        found.append(augmentation(*batch(5)))
    assert torch.equal(*found)


def test_gaussian_keys_by_hand() -> None:
    key, image, text = batch(5)
    torch.manual_seed(0)
    found = GaussianKeys(strength=0.3)(key, image, text)
    torch.manual_seed(0)
    noise, drawn = torch.randn(5, DIM), torch.rand(5)
    expected = DIM**0.5 * key - (0.3 * (1 - drawn))[:, None] * noise
    torch.testing.assert_close(found, expected / expected.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("strength", [0.1, 0.5, 0.9])
def test_gaussian_noise_is_as_long_as_that_of_a_prior_that_knows_it(
    path: Path, strength: float
) -> None:
    torch.manual_seed(0)
    count = 20_000
    key, nothing = rows(1).expand(count, DIM), torch.zeros(count, DIM)
    gaussian = GaussianKeys(strength=strength)
    t = gaussian.draw(key).clamp(min=0.01)  # solving for e loses digits below
    prior = DiffusionPrior.load(path)
    prior.transformer = TrueNoise(key, t)  # type: ignore[assignment]
    found = gaussian(key, nothing, nothing), prior.augment(key, nothing, nothing, t)
    lengths = [(augmented - key).norm(dim=1) for augmented in found]
    error = math.hypot(*(float(length.std()) / count**0.5 for length in lengths))
    assert abs(float(lengths[0].mean() - lengths[1].mean())) < 4 * error


def test_t_is_uniform_above_0_and_up_to_the_strength() -> None:
    torch.manual_seed(0)
    t = GaussianKeys(strength=0.4).draw(torch.zeros(50_000, 2))
    assert t.shape == (50_000,)
    assert 0 < t.min() < 0.001
    assert 0.399 < t.max() <= 0.4
    assert float(t.mean()) == pytest.approx(0.2, abs=0.002)


@pytest.mark.parametrize("strength", [0.0, 1.0, -0.3, float("nan"), None, "foo", True])
def test_wrong_strength(strength: Any) -> None:
    for make in (GaussianKeys, lambda strength: PriorKeys(prior=None, strength=strength)):
        with pytest.raises(ValueError, match=r"augment.keys.strength=.*above 0 and below 1"):
            make(strength=strength)


def test_without_a_prior_or_with_another_width(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"augment.keys.prior"):
        PriorKeys(prior=None, strength=0.3)(*batch(4))
    with pytest.raises(ValueError, match="cannot be read"):
        PriorKeys(prior=tmp_path / "none.safetensors", strength=0.3)
    wide = [rows(4, dim=DIM + 1)] * 3
    with pytest.raises(ValueError, match=r"keys \(4, 17\) do not fit a prior of \(4, 16\)"):
        PriorKeys(prior=path, strength=0.3)(*wide)


def test_contrast_by_hand() -> None:
    key, augmented = rows(3, dim=4), rows(3, dim=4, seed=1)
    group, temperature = [5, 2, 5], 0.5
    everything = torch.cat([key, augmented])
    per_row = []
    for row in range(3):
        share = torch.exp(key[row] @ everything.T / temperature)
        others = [other for other in range(6) if other != row]
        right = [other for other in others if group[other % 3] == group[row]]
        total = share[others].sum()
        per_row.append(-sum(torch.log(share[other] / total) for other in right) / len(right))
    found = AugmentedContrast(temperature=temperature).contrast(key, augmented, torch.tensor(group))
    torch.testing.assert_close(found, sum(per_row) / 3)


def test_pairs_left_out_are_neither_right_nor_wrong() -> None:
    key, augmented, group = rows(3, dim=4), rows(3, dim=4, seed=1), torch.tensor([5, 2, 5])
    left_out = torch.tensor([[False, True, True], [True, False, False], [True, False, False]])
    loss = AugmentedContrast(temperature=0.5)
    cosines = torch.exp(key @ torch.cat([key, augmented]).T / 0.5)
    seen = [[3], [2, 4, 5], [1, 4, 5]]  # of keys and, from 3 on, augmented ones
    right = [3, 4, 5]
    shares = [cosines[row, right[row]] / cosines[row, seen[row]].sum() for row in range(3)]
    expected = -torch.log(torch.stack(shares)).mean()
    torch.testing.assert_close(loss.contrast(key, augmented, group, left_out), expected)


def test_agreement_by_hand() -> None:
    logits = torch.tensor([[2.0, -1.0], [0.0, 3.0]])
    augmented = torch.tensor([[1.0, 0.5], [-2.0, 0.0]])
    margins = torch.tensor([1.0, -0.5, -2.0, 0.0])  # zero counts as +1
    loss = AugmentedContrast(temperature=0.07, scale=3.0)
    expected = torch.log1p(torch.exp(-3.0 * margins)).mean()
    torch.testing.assert_close(loss.agreement(logits, augmented), expected)


def test_the_loss_is_the_mean_of_both_and_its_gradients_are_finite() -> None:
    parts = [rows(6), rows(6, seed=1), rows(6, dim=64, seed=2), rows(6, dim=64, seed=3)]
    for part in parts:
        part.requires_grad_()
    key, augmented, logits, augmented_logits = parts
    group = torch.tensor([0, 1, 0, 2, 1, 3])  # 2 and 3 have no other but their own
    loss = AugmentedContrast(temperature=0.07)
    found = loss(*parts, group)
    halves = loss.contrast(key, augmented, group), loss.agreement(logits, augmented_logits)
    torch.testing.assert_close(found, sum(halves) / 2)
    found.backward()
    assert logits.grad is None  # the sign is a target
    for part in (key, augmented, augmented_logits):
        assert part.grad is not None
        assert part.grad.isfinite().all()
        assert part.grad.abs().sum(1).min() > 0


def test_an_augmented_key_that_stays_near_costs_less() -> None:
    key, group, logits = rows(8), torch.arange(8), rows(8, dim=64)
    loss = AugmentedContrast(temperature=0.07)
    assert loss(key, key, logits, logits, group) < loss(key, -key, logits, -logits, group)
    assert loss(key, key, logits, logits, group) < loss(key, key.roll(1, 0), logits, logits, group)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0}, {"temperature": "foo"}, {"temperature": None}, {"scale": -1.0},
        {"scale": True}, {"scale": math.inf},
    ],
)  # fmt: skip
def test_wrong_settings_of_the_loss(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"augment.loss.{next(iter(change))}=.*above 0"):
        AugmentedContrast(**({"temperature": 0.07} | change))


@pytest.mark.parametrize("option", ["gaussian", "diffusion_prior"])
def test_the_options_build_one_structure(option: str, path: Path) -> None:
    config = OmegaConf.load(CONF / f"{option}.yaml")
    if option == "diffusion_prior":
        config["keys"].prior = str(path)  # .keys is a method
    built = instantiate(config)
    assert set(built) == {"keys", "loss", "weight"}
    key, image, text = batch(4)
    augmented = built["keys"](key, image, text)
    logits = rows(4, dim=64)
    assert built["loss"](key, augmented, logits, logits, torch.arange(4)).isfinite()
    assert built["weight"] == 1.0


def test_the_option_without_augmentation_is_empty() -> None:
    assert OmegaConf.load(CONF / "none.yaml") == {}
