from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distill.standardise import PhiStandardiser, RunningStandardiser, hadamard

# Of ViT-S, -B, -L, so400m, EfficientNet and ConvNeXt, and of CLIP, SigLIP and sentence encoders.
WIDTHS = (1, 2, 4, 8, 12, 16, 28, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536)


def skewed(count: int, dim: int, seed: int = 0) -> Tensor:
    """Rows of correlated dimensions of very different scales and means."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dim, dim, generator=generator) * torch.logspace(-2, 1, dim)
    return torch.randn(count, dim, generator=generator) @ mix + 5


@pytest.mark.parametrize("order", WIDTHS)
def test_hadamard_matrices_of_common_widths(order: int) -> None:
    made = hadamard(order)
    assert set(made.unique().tolist()) <= {-1.0, 1.0}
    assert torch.equal(made @ made.T, order * torch.eye(order))


@pytest.mark.parametrize("order", [3, 6, 10, 92, 250])
def test_a_width_without_one_is_named_with_the_way_out(order: int) -> None:
    with pytest.raises(ValueError, match=rf"order {order} is known.*standardise=running"):
        PhiStandardiser(dim=order)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), dim=st.sampled_from([2, 4, 12, 16]))
def test_phi_s_gives_every_dimension_mean_0_and_variance_1(seed: int, dim: int) -> None:
    rows = skewed(200, dim, seed)
    standardiser = PhiStandardiser(dim=dim)
    standardiser.fit(rows)
    found = standardiser(rows)
    torch.testing.assert_close(found.mean(0), torch.zeros(dim), atol=1e-3, rtol=0)
    torch.testing.assert_close(found.var(0, correction=0), torch.ones(dim), atol=1e-3, rtol=0)


def test_phi_s_keeps_cosines_and_relative_distances_of_centred_rows() -> None:
    rows = skewed(100, 12)
    standardiser = PhiStandardiser(dim=12)
    standardiser.fit(rows)
    found, centred = standardiser(rows), rows - rows.mean(0)
    before, after = (F.normalize(x, dim=1) @ F.normalize(x, dim=1).T for x in (centred, found))
    torch.testing.assert_close(after, before, atol=1e-4, rtol=0)
    ratio = torch.cdist(found, found)[0, 1:] / torch.cdist(centred, centred)[0, 1:]
    torch.testing.assert_close(ratio, ratio[:1].expand(99), atol=0, rtol=1e-3)


def test_phi_s_of_fewer_rows_than_dimensions_and_of_equal_rows_is_finite() -> None:
    for rows in (skewed(5, 16), torch.ones(5, 16)):
        standardiser = PhiStandardiser(dim=16)
        standardiser.fit(rows)
        assert standardiser(rows).isfinite().all()


def test_before_the_fit_phi_s_rotates_alone() -> None:
    rows = skewed(10, 8)
    found = PhiStandardiser(dim=8)(rows)
    torch.testing.assert_close(found.norm(dim=1), rows.norm(dim=1))
    assert not torch.allclose(found, rows)


def test_running_estimates_are_those_of_all_rows_over_the_first_batches() -> None:
    rows = skewed(60, 6)
    standardiser = RunningStandardiser(dim=6)
    standardiser.fit(rows[:1])  # does nothing
    for batch in rows.split(10):
        found = standardiser(batch)
    torch.testing.assert_close(standardiser.mean, rows.mean(0))
    torch.testing.assert_close(standardiser.square, rows.square().mean(0))
    assert int(standardiser.batches) == 6
    expected = (rows - rows.mean(0)) / rows.std(0, correction=0)
    torch.testing.assert_close(found, expected[50:], atol=1e-3, rtol=1e-3)


def test_then_the_newest_batch_counts_by_the_momentum() -> None:
    standardiser = RunningStandardiser(dim=1, momentum=0.25)
    for _ in range(10):
        standardiser(torch.zeros(3, 1))
    standardiser(torch.full((3, 1), 8.0))
    assert float(standardiser.mean) == pytest.approx(0.25 * 8)


def test_running_estimates_stay_in_evaluation_and_without_rows() -> None:
    standardiser = RunningStandardiser(dim=4)
    standardiser(skewed(20, 4))
    before = {name: value.clone() for name, value in standardiser.state_dict().items()}
    assert standardiser(torch.zeros(0, 4)).shape == (0, 4)  # a batch without this modality
    standardiser.eval()
    rows = skewed(20, 4, seed=1)
    first = standardiser(rows)
    assert torch.equal(standardiser(rows), first)
    assert all(torch.equal(before[n], value) for n, value in standardiser.state_dict().items())


@pytest.mark.parametrize("kind", [RunningStandardiser, PhiStandardiser])
def test_the_estimates_are_in_the_state(kind: type) -> None:
    rows = skewed(50, 4)
    one, other = kind(dim=4), kind(dim=4)
    one.fit(rows)
    one(rows)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.eval()(rows), one.eval()(rows))
    assert not torch.allclose(other(rows), kind(dim=4).eval()(rows))
