from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keynet.models.hash_head import HashHead
from keynet.types import CODE_BITS


def skewed_keys(count: int, seed: int) -> Tensor:
    """Unit keys [count, 32] that all lean to one side, as those of a narrow domain do."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, 32, generator=generator) + 1.5, dim=1)


def trained_head(bits: int = 128) -> HashHead:
    torch.manual_seed(0)
    head = HashHead(key_dim=32, bits=bits).train()
    for step in range(100):
        head(skewed_keys(64, seed=step))
    return head


def test_the_code_is_signs_of_the_centred_keys_in_a_rotation_that_training_has_not() -> None:
    head, keys = trained_head().eval(), skewed_keys(50, seed=1000)
    matrix, offset = head.folded()
    torch.testing.assert_close(head(keys), keys @ matrix.T + offset)
    torch.testing.assert_close(head(keys), (keys - head.mean) @ head.rotation.T)
    torch.testing.assert_close(head.mean, skewed_keys(5000, seed=2000).mean(0), atol=0.02, rtol=0)
    taught, shift = head.taught()
    expected = head.norm(head.linear(keys))
    torch.testing.assert_close(keys @ taught.T + shift, expected, rtol=1e-4, atol=1e-4)
    agree = ((head(keys) >= 0) == (expected >= 0)).float().mean()
    assert 0.4 < agree < 0.6
    assert 0.5 < head(keys).std() < 2


def test_the_rotation_of_the_code_draws_no_random_numbers_of_the_training() -> None:
    torch.manual_seed(1)
    first, drawn = HashHead(key_dim=32, bits=64), torch.rand(1)
    torch.manual_seed(1)
    nn.Linear(32, 64, bias=False)
    nn.init.orthogonal_(torch.empty(32, 32))
    nn.init.orthogonal_(torch.empty(32, 32))
    assert torch.equal(drawn, torch.rand(1))
    assert torch.equal(first.rotation, HashHead(key_dim=32, bits=64).rotation)


@pytest.mark.parametrize("bits", [64, 128, 512])
def test_both_projections_are_rotations_that_nothing_trains(bits: int) -> None:
    head = HashHead(key_dim=128, bits=bits)
    assert not any(weight.requires_grad for weight in head.parameters())
    for weight in (head.linear.weight, head.rotation / 128**0.5):
        for rows in weight.split(128):
            torch.testing.assert_close(rows @ rows.T, torch.eye(len(rows)), atol=1e-5, rtol=0)


def test_evaluation_does_not_depend_on_the_batch() -> None:
    head, keys = trained_head().eval(), skewed_keys(50, seed=1000)
    torch.testing.assert_close(head(keys)[7:8], head(keys[7:8]))
    before = head.norm.running_mean.clone(), head.mean.clone()
    head(keys)
    assert torch.equal(head.norm.running_mean, before[0])
    assert torch.equal(head.mean, before[1])


def test_codes_are_balanced_and_would_not_be_without_statistics() -> None:
    keys = skewed_keys(2000, seed=1000)
    ones = (trained_head().eval()(keys) >= 0).float().mean(0)
    assert ones.min() > 0.35
    assert ones.max() < 0.65
    bare = (HashHead(key_dim=32, bits=128).eval()(keys) >= 0).float().mean(0)
    assert bare.min() < 0.1
    assert bare.max() > 0.9


def test_a_training_batch_is_standardised() -> None:
    logits = HashHead(key_dim=32, bits=64).train()(skewed_keys(256, seed=0))
    torch.testing.assert_close(logits.mean(0), torch.zeros(64), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits.var(0, unbiased=False), torch.ones(64), atol=0.02, rtol=0)


@pytest.mark.parametrize("bits", [0, 96, 1024])
def test_bits_that_no_code_has(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits={bits}: expected one of"):
        HashHead(key_dim=32, bits=bits)


@pytest.mark.parametrize("bits", CODE_BITS)
def test_every_code_length(bits: int) -> None:
    assert HashHead(key_dim=32, bits=bits).eval()(skewed_keys(3, seed=0)).shape == (3, bits)
