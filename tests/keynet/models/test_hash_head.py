from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

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


def test_folded_matrix_is_the_batch_norm_of_evaluation() -> None:
    head, keys = trained_head().eval(), skewed_keys(50, seed=1000)
    matrix, offset = head.folded()
    expected = head.norm(head.linear(keys))
    assert matrix.shape == (128, 32)
    assert offset.shape == (128,)
    torch.testing.assert_close(keys @ matrix.T + offset, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(head(keys), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [64, 128, 512])
def test_the_projection_is_rotations_that_nothing_trains(bits: int) -> None:
    weight = HashHead(key_dim=128, bits=bits).linear.weight
    assert not weight.requires_grad
    for rows in weight.split(128):
        torch.testing.assert_close(rows @ rows.T, torch.eye(len(rows)), atol=1e-5, rtol=0)


def test_evaluation_does_not_depend_on_the_batch() -> None:
    head, keys = trained_head().eval(), skewed_keys(50, seed=1000)
    torch.testing.assert_close(head(keys)[7:8], head(keys[7:8]))
    before = head.norm.running_mean.clone()
    head(keys)
    assert torch.equal(head.norm.running_mean, before)


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
