from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aligners.fusion import WeightedSum
from aligners.qformer import QFormerFusion

D, C, T = 16, 12, 5
ALPHAS = ["alignment", "learned", 0, 0.6, 1]


def built(alpha: float | str = 0.6) -> QFormerFusion:
    """A Q-Former whose correction counts: one just built is close to the weighted sum."""
    torch.manual_seed(0)
    fusion = QFormerFusion(
        key_dim=D, token_dim=C, width=32, depth=2, heads=2, num_queries=3, alpha=alpha
    )
    with torch.no_grad():
        fusion.head.weight.mul_(10)
        for parameter in fusion.qformer.parameters():
            if parameter.dim() == 2:  # attention that is not almost uniform, as at the start
                parameter.normal_(std=0.3)
    return fusion.eval()


@pytest.fixture(params=ALPHAS)
def fusion(request: pytest.FixtureRequest) -> QFormerFusion:
    return built(request.param)


def inputs(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    image, text = F.normalize(torch.randn(2, count, D, generator=generator), dim=-1)
    return image, text, torch.randn(count, T, C, generator=generator)


def some_absent(count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    image, text, tokens = inputs(count, seed)
    image[:2], text[2:4] = 0, 0
    return image, text, tokens


def test_the_key_has_unit_norm_with_any_modality(fusion: QFormerFusion) -> None:
    torch.testing.assert_close(fusion(*some_absent(6)).norm(dim=1), torch.ones(6))


def test_the_key_is_the_weighted_sum_of_the_corrected_image_and_the_text() -> None:
    fusion = built(0.6)
    image, text, tokens = inputs(4)
    corrected = fusion.corrected(image, text, tokens)
    torch.testing.assert_close(corrected.norm(dim=1), torch.ones(4))
    assert ((corrected * image).sum(1) < 0.95).all()
    expected = F.normalize(0.6 * corrected + 0.4 * text, dim=1)
    torch.testing.assert_close(fusion(image, text, tokens), expected)


def test_text_alone_is_the_text_whatever_the_tokens(fusion: QFormerFusion) -> None:
    _, text, tokens = inputs(4)
    image = torch.zeros(4, D)
    key = fusion(image, text, tokens)
    torch.testing.assert_close(key, text)
    assert torch.equal(fusion(image, text, torch.full_like(tokens, float("nan"))), key)


def test_an_image_alone_is_the_corrected_image(fusion: QFormerFusion) -> None:
    image, _, tokens = inputs(4)
    text = torch.zeros(4, D)
    key = fusion(image, text, tokens)
    torch.testing.assert_close(key, fusion.corrected(image, text, tokens))
    assert (fusion(image, text, tokens.flip(0)) - key).norm(dim=1).min() > 0.05


def test_an_absent_text_is_masked(fusion: QFormerFusion) -> None:
    image, _, tokens = inputs(4)
    text = torch.zeros(4, D)
    key = fusion(image, text, tokens)
    with torch.no_grad():
        fusion.text_projection.bias.add_(5)  # what a zero row would bring in
    assert torch.equal(fusion(image, text, tokens), key)


def test_a_question_changes_what_is_taken_from_the_same_tokens() -> None:
    fusion = built(1)  # the text reaches the key through the Q-Former alone
    image, text, tokens = inputs(2)
    image, tokens = image[:1].expand(2, -1), tokens[:1].expand(2, -1, -1)
    with_text = fusion(image, text, tokens)
    assert (with_text[0] - with_text[1]).norm() > 0.05
    assert (with_text - fusion(image, torch.zeros_like(text), tokens)).norm(dim=1).min() > 0.05


def test_the_order_of_the_tokens_does_not_matter() -> None:
    fusion = built()
    image, text, tokens = inputs(4)
    torch.testing.assert_close(fusion(image, text, tokens.flip(1)), fusion(image, text, tokens))


def test_permuting_the_batch_permutes_the_keys(fusion: QFormerFusion) -> None:
    rows = some_absent(6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = fusion(*(row[order] for row in rows))
    torch.testing.assert_close(permuted, fusion(*rows)[order])


def test_stored_tokens_in_bfloat16_are_read() -> None:
    fusion = built()
    image, text, tokens = inputs(4)
    key = fusion(image, text, tokens.bfloat16())
    assert key.dtype == torch.float32
    assert torch.equal(key, fusion(image, text, tokens.bfloat16().float()))


def gradients(fusion: QFormerFusion, rows: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
    image, text, tokens = (row.requires_grad_() for row in rows)
    (fusion.train()(image, text, tokens) * inputs(6, seed=1)[0]).sum().backward()
    tensors = {"image": image, "text": text, "tokens": tokens, **dict(fusion.named_parameters())}
    assert all(tensor.grad is not None for tensor in tensors.values())
    return {name: tensor.grad for name, tensor in tensors.items() if tensor.grad is not None}


def test_no_gradient_is_nan_where_one_is_absent(fusion: QFormerFusion) -> None:
    found = gradients(fusion, some_absent(6))
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert not found["tokens"][:2].any()
    assert found["tokens"][2:4].any(-1).all()


@pytest.mark.parametrize("alpha", ["alignment", "learned", 0.6])
def test_every_parameter_learns_from_the_first_step(alpha: float | str) -> None:
    torch.manual_seed(0)
    fusion = QFormerFusion(key_dim=D, token_dim=C, width=32, heads=2, alpha=alpha)
    still = [
        name for name, gradient in gradients(fusion, some_absent(6)).items() if not gradient.any()
    ]
    assert all(name.endswith("key.bias") for name in still)  # which a softmax cancels


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python boolean")  # a fixed length
@pytest.mark.parametrize(("alpha", "sample"), [(0.6, inputs), (0, some_absent)])
def test_a_trace_is_exact_at_another_batch_size_and_number_of_tokens(
    alpha: float, sample: Callable[[int], tuple[Tensor, Tensor, Tensor]]
) -> None:
    fusion = built(alpha)
    with torch.no_grad():
        traced = torch.jit.trace(fusion, sample(4))
        for count, num_tokens in [(1, T), (7, T), (7, 1)]:
            image, text, tokens = some_absent(count, seed=1)
            rows = image, text, tokens[:, :num_tokens]
            assert torch.equal(traced(*rows), fusion(*rows))


def test_it_learns_to_read_one_token_for_one_question_and_another_for_another() -> None:
    """From tokens alone: the aligned image is the same throughout."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(2)
    colour, shape = torch.randn(2, 4, C, generator=generator)
    grid = torch.cartesian_prod(torch.arange(4), torch.arange(4), torch.arange(2))
    tokens = torch.stack([colour[grid[:, 0]], shape[grid[:, 1]]], dim=1)
    image, question, target = (
        F.normalize(torch.randn(n, D, generator=generator), dim=1) for n in (1, 2, 8)
    )
    text = question[grid[:, 2]]
    group = torch.where(grid[:, 2] == 0, grid[:, 0], 4 + grid[:, 1])
    fusion = QFormerFusion(key_dim=D, token_dim=C, width=32, heads=2, num_queries=2, dropout=0.0)
    optimizer = torch.optim.Adam(fusion.parameters(), lr=3e-3)
    for _ in range(100):
        key = fusion(image.expand(32, -1), text, tokens)
        loss = F.cross_entropy(key @ target.T * 10, group)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    cosine = (key @ key.T).detach()
    same = group[:, None] == group[None]
    assert cosine[same].min() - cosine[~same].max() > 0.2


def test_training_starts_near_the_weighted_sum() -> None:
    torch.manual_seed(0)
    fusion = QFormerFusion(key_dim=D, token_dim=C, width=32, heads=2, alpha=0.6).eval()
    image, text, tokens = inputs(8)
    start = WeightedSum(key_dim=D, alpha=0.6)(image, text)
    assert F.cosine_similarity(fusion(image, text, tokens), start).min() > 0.98


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "fusion.heads=3: expected a divisor of fusion.width=32"),
        ({"depth": 0}, "fusion.depth=0: expected a whole number above 0"),
        ({"num_queries": 0}, "fusion.num_queries=0: expected a whole number above 0"),
        ({"width": "foo"}, "fusion.width='foo': expected a whole number above 0"),
        ({"heads": None}, "fusion.heads=None: expected a whole number above 0"),
        ({"dropout": 1}, "fusion.dropout=1: expected a number from 0 to below 1"),
        ({"dropout": None}, "fusion.dropout=None: expected a number from 0 to below 1"),
    ],
)
def test_values_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QFormerFusion(**({"key_dim": D, "token_dim": C, "width": 32} | change))
