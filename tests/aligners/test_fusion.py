from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aligners.fusion import ResidualMLP, WeightedSum, alignment_strength

D = 16


def unit(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, D, generator=generator), dim=1)


ALPHAS = ["alignment", "learned", 0, 0.6, 1]


@pytest.fixture(params=[(name, alpha) for name in ("weighted_sum", "mlp") for alpha in ALPHAS])
def fusion(request: pytest.FixtureRequest) -> WeightedSum:
    name, alpha = request.param
    torch.manual_seed(0)
    if name == "weighted_sum":
        return WeightedSum(key_dim=D, alpha=alpha)
    return ResidualMLP(key_dim=D, hidden_dim=32, alpha=alpha)


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


def test_permuting_the_batch_permutes_the_keys(fusion: WeightedSum) -> None:
    image, text = unit(6, 0), unit(6, 1)
    image[:2], text[2:4] = 0, 0
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    expected = fusion(image, text)[order]
    torch.testing.assert_close(fusion(image[order], text[order]), expected)


def test_the_tokens_are_not_looked_at(fusion: WeightedSum) -> None:
    image, text = unit(4, 0), unit(4, 1)
    tokens = torch.full((4, 3, 5), float("nan"))
    assert torch.equal(fusion(image, text, tokens), fusion(image, text))


def test_each_modality_matters_unless_alpha_leaves_it_out(fusion: WeightedSum) -> None:
    image, text = unit(4, 0), unit(4, 1)
    key = fusion(image, text)
    bare = type(fusion) is WeightedSum
    for left_out_by, other in [(0, fusion(image.flip(0), text)), (1, fusion(image, text.flip(0)))]:
        if bare and fusion.alpha == left_out_by:
            assert torch.equal(other, key)
        else:
            assert (other - key).norm(dim=1).min() > 0.05


def test_no_gradient_is_nan_where_one_is_absent(fusion: WeightedSum) -> None:
    image, text = unit(4, 0), unit(4, 1)
    image[0], text[1] = 0, 0
    image.requires_grad_()
    text.requires_grad_()
    fusion(image, text).sum().backward()
    gradients = [image.grad, text.grad, *(p.grad for p in fusion.parameters())]
    assert all(g is not None and g.isfinite().all() for g in gradients)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
def test_a_trace_is_exact_at_another_batch_size(fusion: WeightedSum) -> None:
    tokens = torch.zeros(7, 3, 5)
    traced = torch.jit.trace(fusion.eval(), (unit(2, 0), unit(2, 1), tokens[:2]))
    image, text = unit(7, 2), unit(7, 3)
    image[:2], text[2:4] = 0, 0
    assert torch.equal(traced(image, text, tokens), fusion(image, text, tokens))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_weighted_sum_of_one_modality_is_that_modality(
    alpha: float | Literal["learned", "alignment"],
) -> None:
    rows, fusion = unit(4, 0), WeightedSum(key_dim=D, alpha=alpha)
    torch.testing.assert_close(fusion(rows, torch.zeros(4, D)), rows)
    torch.testing.assert_close(fusion(torch.zeros(4, D), rows), rows)


@pytest.mark.parametrize("alpha", [0, 0.0, 0.3, 0.6, 1])
def test_a_fixed_alpha_is_the_images_weight(alpha: float) -> None:
    fusion = WeightedSum(key_dim=D, alpha=alpha)
    image, text = unit(4, 0), unit(4, 1)
    expected = alpha * image + (1 - alpha) * text
    torch.testing.assert_close(fusion.weighted(image, text), expected)
    torch.testing.assert_close(fusion(image, text), F.normalize(expected, dim=1))
    assert not list(fusion.parameters())


def test_a_learned_alpha_starts_at_that_of_k4_and_learns() -> None:
    fusion = WeightedSum(key_dim=D, alpha="learned")
    image, text = unit(4, 0), unit(4, 1)
    fixed = WeightedSum(key_dim=D, alpha=0.6)
    torch.testing.assert_close(fusion.weighted(image, text), fixed.weighted(image, text))
    (alpha,) = fusion.parameters()
    (fusion(image, text) * image).sum().backward()
    assert alpha.grad is not None and alpha.grad > 0  # more of the image, nearer to it


def test_a_modality_alone_teaches_a_learned_alpha_nothing() -> None:
    fusion = WeightedSum(key_dim=D, alpha="learned")
    (fusion(unit(4, 0), torch.zeros(4, D)) * unit(4, 1)).sum().backward()
    assert fusion.alpha_logit.grad == 0


@pytest.mark.parametrize("alpha", [-0.1, 1.01, float("nan"), "fixed", None, True])
def test_an_alpha_that_is_none_is_named(alpha: Any) -> None:
    with pytest.raises(ValueError, match=f"fusion.alpha={alpha!r}.*\\[0, 1\\]"):
        ResidualMLP(key_dim=D, hidden_dim=8, alpha=alpha)


def test_a_checkpoint_weighted_by_alignment_still_loads() -> None:
    names = set(WeightedSum(key_dim=D).state_dict())
    assert names == {"scale", "offset"}


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
