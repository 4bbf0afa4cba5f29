from __future__ import annotations

import pytest
import torch
from torch import Tensor

import keynet.models.text_tower
from keynet.models.text_tower import TextTower


@pytest.fixture
def tower() -> TextTower:
    torch.manual_seed(0)
    return TextTower(vocab_size=50, width=32, depth=2, heads=4, max_tokens=24).eval()


def texts(lengths: tuple[int, ...] = (5, 1, 8, 3), size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(size) < torch.tensor(lengths)[:, None]
    return torch.randint(50, (len(lengths), size), generator=generator) * mask, mask


def test_padding_length_does_not_matter(tower: TextTower) -> None:
    tokens, mask = texts()
    longer = torch.zeros(4, 24, dtype=torch.int64), torch.zeros(4, 24, dtype=torch.bool)
    longer[0][:, :8], longer[1][:, :8] = tokens, mask
    torch.testing.assert_close(tower(*longer), tower(tokens, mask), rtol=1e-4, atol=1e-5)


def test_tokens_under_a_false_mask_do_not_matter(tower: TextTower) -> None:
    tokens, mask = texts()
    assert torch.equal(tower(torch.where(mask, tokens, 7), mask), tower(tokens, mask))


def test_absent_texts_are_finite_and_alike(tower: TextTower) -> None:
    tokens, mask = texts()
    mask[1:3] = False
    features = tower(tokens, mask)
    assert features.isfinite().all()
    torch.testing.assert_close(features[1], features[2])
    assert not torch.allclose(features[0], features[1], atol=1e-2)
    features.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in tower.parameters())


def test_permuting_the_batch_permutes_the_features(tower: TextTower) -> None:
    tokens, mask = texts()
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(tower(tokens[order], mask[order]), tower(tokens, mask)[order])


def test_the_order_of_tokens_matters(tower: TextTower) -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    one, other = tower(torch.tensor([[4, 5, 6], [6, 5, 4]]), mask)
    assert not torch.allclose(one, other, atol=1e-3)


def test_each_token_matters(tower: TextTower) -> None:
    tokens, mask = texts(lengths=(8,))
    features = tower(tokens, mask)
    for place in range(8):
        changed = tokens.clone()
        changed[0, place] = (changed[0, place] + 1) % 50
        assert not torch.allclose(tower(changed, mask), features, atol=1e-4), place


def test_training_in_bf16_is_near_evaluation(tower: TextTower) -> None:
    tokens, mask = texts()
    expected = tower(tokens, mask)
    trained = tower.train()(tokens, mask)
    assert torch.cosine_similarity(trained.float(), expected).min() > 0.99
    trained.float().square().sum().backward()
    missing = [name for name, p in tower.named_parameters() if p.grad is None]
    assert not missing


@pytest.mark.parametrize("rows_at_once", [1, 3, 64])
def test_training_gives_the_rows_of_evaluation_whatever_the_lengths(
    tower: TextTower, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(keynet.models.text_tower, "ROWS_AT_ONCE", rows_at_once)
    tokens, mask = texts(lengths=(5, 24, 1, 8, 0, 9, 16, 17, 3, 0), size=24)
    expected = tower(tokens, mask)
    trained = tower.train()(tokens, mask).float()
    # Three digits of bf16, and each row nearest to its own. Rows 4 and 9, both absent, are alike.
    torch.testing.assert_close(trained, expected, atol=0.05, rtol=0.05)
    nearest = torch.cdist(trained, expected).argmin(1).tolist()
    assert [4 if row == 9 else row for row in nearest] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 4]


def test_texts_of_like_length_are_encoded_together(
    tower: TextTower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keynet.models.text_tower, "ROWS_AT_ONCE", 3)
    shapes: list[tuple[int, ...]] = []
    encode = tower._encode

    def encoded(tokens: Tensor, mask: Tensor) -> Tensor:
        shapes.append(tuple(tokens.shape))
        return encode(tokens, mask)

    monkeypatch.setattr(tower, "_encode", encoded)
    tokens, mask = texts(lengths=(20, 2, 9, 0, 17, 8, 1), size=24)
    tower.train()(tokens, mask)
    assert shapes == [(3, 8), (3, 24), (1, 24)]  # up to multiples of 8
    shapes.clear()
    tower.eval()(tokens, mask)
    assert shapes == [(7, 24)]  # serving has one shape, whatever comes


def test_num_features_is_the_width(tower: TextTower) -> None:
    tokens, mask = texts()
    assert tower(tokens, mask).shape == (4, tower.num_features)
    assert tower(tokens, mask).dtype == torch.float32
