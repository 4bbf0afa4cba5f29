from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from distill.projector import HIDDEN_DIM, Projector


@pytest.fixture
def projector() -> Projector:
    torch.manual_seed(0)
    return Projector(in_dim=16, out_dim=24)


def test_it_is_two_layers_with_a_gelu_over_the_scaled_vector(projector: Projector) -> None:
    unit = F.normalize(torch.randn(5, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    weights = [p.detach() for p in projector.parameters()]
    assert [w.numel() for w in weights] == [16 * HIDDEN_DIM, HIDDEN_DIM, 24 * HIDDEN_DIM, 24]
    hidden = F.gelu(4 * unit @ weights[0].T + weights[1])
    torch.testing.assert_close(projector(unit), hidden @ weights[2].T + weights[3])


def test_all_of_it_and_the_student_learn(projector: Projector) -> None:
    unit = torch.full((2, 16), 0.25, requires_grad=True)
    projector(unit).square().sum().backward()
    for tensor in (unit, *projector.parameters()):
        assert tensor.grad is not None
        assert tensor.grad.abs().max() > 0


def test_no_rows(projector: Projector) -> None:
    assert projector(torch.zeros(0, 16)).shape == (0, 24)
