from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aligners.low_rank_adapter import LowRankAdapter

C = 16


def features(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, C, generator=torch.Generator().manual_seed(seed)) * 5


@pytest.fixture
def adapter() -> LowRankAdapter:
    """One that is no longer the identity."""
    torch.manual_seed(0)
    adapter = LowRankAdapter(dim=C, rank=4)
    torch.nn.init.normal_(adapter.up.weight)
    return adapter


def test_a_value_computed_by_hand() -> None:
    adapter = LowRankAdapter(dim=2, rank=1)
    adapter.down.weight.data = torch.tensor([[1.0, 2.0]])
    adapter.up.weight.data = torch.tensor([[3.0], [-1.0]])
    # [4, 1]: down 6, up [18, -6]
    torch.testing.assert_close(adapter(torch.tensor([[4.0, 1.0]])), torch.tensor([[22.0, -5.0]]))


@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_it_starts_as_the_identity(shape: tuple[int, ...]) -> None:
    rows = features(*shape)
    assert torch.equal(LowRankAdapter(dim=C)(rows), rows)


@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_the_shape_stays_and_rows_do_not_mix(
    adapter: LowRankAdapter, shape: tuple[int, ...]
) -> None:
    rows = features(*shape)
    adapted = adapter(rows)
    assert adapted.shape == rows.shape
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(adapter(rows[order]), adapted[order])
    torch.testing.assert_close(adapter(rows.reshape(-1, C)), adapted.reshape(-1, C))


def test_the_correction_has_the_rank(adapter: LowRankAdapter) -> None:
    rows = features(C)
    assert torch.linalg.matrix_rank(adapter(rows) - rows, rtol=1e-4) == 4
    assert sum(p.numel() for p in adapter.parameters()) == 2 * 4 * C


def test_it_learns_from_the_start() -> None:
    """At the start only ``up`` has a gradient; after one step both have."""
    torch.manual_seed(0)
    adapter, rows = LowRankAdapter(dim=C), features(32)
    wanted = rows.flip(1)
    optimizer = torch.optim.Adam(adapter.parameters(), lr=1e-2)
    losses = []
    for _ in range(200):
        loss = (adapter(rows) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]  # rows.flip(1) - rows has rank 8


def test_gradients_reach_everything_and_are_finite(adapter: LowRankAdapter) -> None:
    rows = features(4)
    rows[0] = 0
    rows.requires_grad_()
    adapter(rows).square().sum().backward()
    for gradient in [rows.grad, *(p.grad for p in adapter.parameters())]:
        assert gradient is not None
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.parametrize("tail", [(), (5,)])
def test_a_trace_is_exact_at_another_batch_size(
    adapter: LowRankAdapter, tail: tuple[int, ...]
) -> None:
    traced = torch.jit.trace(adapter.eval(), features(2, *tail))
    rows = features(7, *tail, seed=1)
    assert torch.equal(traced(rows), adapter(rows))


@pytest.mark.parametrize("rank", [0, C + 1])
def test_a_rank_that_is_none_is_named(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank={rank}: expected 1 to dim=16"):
        LowRankAdapter(dim=C, rank=rank)
