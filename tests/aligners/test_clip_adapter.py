from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aligners.clip_adapter import ClipAdapter

C = 16


def features(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, C, generator=torch.Generator().manual_seed(seed)) * 5


@pytest.fixture
def adapter() -> ClipAdapter:
    torch.manual_seed(0)
    return ClipAdapter(dim=C)


def test_a_value_computed_by_hand() -> None:
    adapter = ClipAdapter(dim=2, reduction=2, ratio=0.25)
    adapter.mlp[0].weight.data = torch.tensor([[1.0, -1.0]])
    adapter.mlp[2].weight.data = torch.tensor([[2.0], [-3.0]])
    # [3, 1]: bottleneck 2, then relu([4, -6]) = [4, 0]; [1, 3]: bottleneck relu(-2) = 0
    expected = torch.tensor([[0.25 * 4 + 0.75 * 3, 0.75 * 1], [0.75 * 1, 0.75 * 3]])
    torch.testing.assert_close(adapter(torch.tensor([[3.0, 1.0], [1.0, 3.0]])), expected)


@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_the_shape_stays_and_rows_do_not_mix(adapter: ClipAdapter, shape: tuple[int, ...]) -> None:
    rows = features(*shape)
    adapted = adapter(rows)
    assert adapted.shape == rows.shape
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(adapter(rows[order]), adapted[order])
    torch.testing.assert_close(adapter(rows.reshape(-1, C)), adapted.reshape(-1, C))


def test_ratio_0_is_the_identity_and_1_the_mlp() -> None:
    rows = features(4)
    assert torch.equal(ClipAdapter(dim=C, ratio=0.0)(rows), rows)
    adapter = ClipAdapter(dim=C, ratio=1.0)
    torch.testing.assert_close(adapter(rows), adapter.mlp(rows))


def test_the_norm_of_a_feature_does_not_change_the_blend(adapter: ClipAdapter) -> None:
    rows = features(4)
    torch.testing.assert_close(adapter(40 * rows), 40 * adapter(rows))


def test_the_bottleneck_is_narrower_by_the_reduction() -> None:
    assert sum(p.numel() for p in ClipAdapter(dim=32, reduction=8).parameters()) == 2 * 32 * 4


def test_gradients_reach_everything_and_are_finite(adapter: ClipAdapter) -> None:
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
    adapter: ClipAdapter, tail: tuple[int, ...]
) -> None:
    traced = torch.jit.trace(adapter.eval(), features(2, *tail))
    rows = features(7, *tail, seed=1)
    assert torch.equal(traced(rows), adapter(rows))


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_that_is_no_share_is_named(ratio: float) -> None:
    with pytest.raises(ValueError, match=f"ratio={ratio}: expected a share"):
        ClipAdapter(dim=C, ratio=ratio)


@pytest.mark.parametrize("reduction", [0, C + 1])
def test_an_empty_bottleneck_is_named(reduction: int) -> None:
    with pytest.raises(ValueError, match=f"reduction={reduction}: expected 1 to dim=16"):
        ClipAdapter(dim=C, reduction=reduction)
