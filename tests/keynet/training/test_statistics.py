"""Over several ranks: test_ranks.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from keynet.training.statistics import BatchStatistics


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(8, 3, 2, generator=torch.Generator().manual_seed(0))


def test_alone_it_is_batch_norm(rows: torch.Tensor) -> None:
    plain, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    expected = plain(rows)
    with BatchStatistics():
        assert torch.equal(other(rows), expected)
    for name, value in plain.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


def test_a_repeated_forward_leaves_the_running_statistics(rows: torch.Tensor) -> None:
    norm = nn.BatchNorm1d(3)
    expected = norm(rows)
    assert norm.running_mean is not None and norm.running_var is not None
    mean, var = norm.running_mean.clone(), norm.running_var.clone()
    with BatchStatistics(update=False):
        torch.testing.assert_close(norm(rows), expected)
    assert torch.equal(norm.running_mean, mean)
    assert torch.equal(norm.running_var, var)


def test_in_evaluation_the_running_statistics_serve(rows: torch.Tensor) -> None:
    norm = nn.BatchNorm1d(3)
    norm(rows)
    norm.eval()
    with BatchStatistics(update=False):
        assert torch.equal(norm(rows[:2]), norm(rows)[:2])
        assert not torch.equal(norm(rows), nn.BatchNorm1d(3)(rows))
