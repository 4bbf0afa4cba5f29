from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aligners.fusion import ResidualMLP, WeightedSum, alignment_strength

D = 16


def unit(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, D, generator=generator), dim=1)


@pytest.fixture(params=["weighted_sum", "residual_mlp"])
def fusion(request: pytest.FixtureRequest) -> WeightedSum:
    torch.manual_seed(0)
    if request.param == "weighted_sum":
        return WeightedSum(key_dim=D)
    return ResidualMLP(key_dim=D, hidden_dim=32)


def test_alignment_strength_is_the_cosine_and_zero_where_absent() -> None:
    image, text = unit(3, 0), unit(3, 1)
    image[1] = 0
    strength = alignment_strength(image, text)
    assert strength[1] == 0
    torch.testing.assert_close(strength[0], image[0] @ text[0])
    torch.testing.assert_close(alignment_strength(text, text), torch.ones(3))


def test_the_key_has_unit_norm_with_any_modality(fusion: WeightedSum) -> None:
    image, text = unit(6, 0), unit(6, 1)
    image[:2], text[2:4] = 0, 0
    torch.testing.assert_close(fusion(image, text).norm(dim=1), torch.ones(6))


def test_rows_do_not_mix(fusion: WeightedSum) -> None:
    image, text = unit(6, 0), unit(6, 1)
    torch.testing.assert_close(fusion(image, text)[3:4], fusion(image[3:4], text[3:4]))


def test_both_modalities_matter(fusion: WeightedSum) -> None:
    image, text = unit(4, 0), unit(4, 1)
    key = fusion(image, text)
    assert (fusion(image.flip(0), text) - key).norm(dim=1).min() > 0.05
    assert (fusion(image, text.flip(0)) - key).norm(dim=1).min() > 0.05


def test_no_gradient_is_nan_where_one_is_absent(fusion: WeightedSum) -> None:
    image, text = unit(4, 0), unit(4, 1)
    image[0], text[1] = 0, 0
    image.requires_grad_()
    text.requires_grad_()
    fusion(image, text).sum().backward()
    gradients = [image.grad, text.grad, *(p.grad for p in fusion.parameters())]
    assert all(g is not None and g.isfinite().all() for g in gradients)


def test_weighted_sum_of_one_modality_is_that_modality() -> None:
    rows = unit(4, 0)
    torch.testing.assert_close(WeightedSum(key_dim=D)(rows, torch.zeros(4, D)), rows)
    torch.testing.assert_close(WeightedSum(key_dim=D)(torch.zeros(4, D), rows), rows)


def test_weighted_sum_is_weighted_by_the_alignment() -> None:
    fusion = WeightedSum(key_dim=D)
    fusion.scale.data.fill_(2.0)
    fusion.offset.data.fill_(-0.5)
    image, text = unit(4, 0), unit(4, 1)
    weight = 1 / (1 + torch.exp(-(2.0 * (image * text).sum(1, keepdim=True) - 0.5)))
    expected = weight * image + (1 - weight) * text
    torch.testing.assert_close(fusion.weighted(image, text), expected)
    torch.testing.assert_close(fusion(image, text), F.normalize(expected, dim=1))


def test_residual_mlp_can_forget_a_direction_of_the_picture_for_one_question() -> None:
    """What the bare weighted sum cannot: colour for one question, shape for another."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    colour, shape = torch.randn(4, D, generator=generator), torch.randn(4, D, generator=generator)
    question = F.normalize(torch.randn(2, D, generator=generator), dim=1)
    grid = torch.cartesian_prod(torch.arange(4), torch.arange(4), torch.arange(2))
    image = F.normalize(colour[grid[:, 0]] + shape[grid[:, 1]], dim=1)
    text = question[grid[:, 2]]
    group = torch.where(grid[:, 2] == 0, grid[:, 0], 4 + grid[:, 1])
    same = (group[:, None] == group[None]).fill_diagonal_(False)
    other = group[:, None] != group[None]

    def margin(fusion: WeightedSum) -> float:
        optimizer = torch.optim.Adam(fusion.parameters(), lr=1e-2)
        for _ in range(150):
            key = fusion(image, text)
            loss = F.cross_entropy(key @ F.normalize(target, dim=1).T * 10, group)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        cosine = (key @ key.T).detach()
        return float(cosine[same].min() - cosine[other].max())

    target = torch.randn(8, D, generator=generator)
    assert margin(ResidualMLP(key_dim=D, hidden_dim=64)) > 0.2
    assert margin(WeightedSum(key_dim=D)) < 0
