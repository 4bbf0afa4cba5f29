from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aligners.concatenation import Concatenation

D = 8


def unit(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, D, generator=generator), dim=1)


def test_each_block_weighs_root_a_half_and_one_alone_is_itself() -> None:
    image, text = unit(4, 0), unit(4, 1)
    image[0], text[1] = 0, 0
    key = Concatenation(key_dim=2 * D)(image, text, unit(4, 2).unsqueeze(1))
    assert key.shape == (4, 2 * D)
    torch.testing.assert_close(key.norm(dim=1), torch.ones(4))
    torch.testing.assert_close(key[2:], torch.cat([image, text], dim=1)[2:] * 0.5**0.5)
    assert torch.equal(key[0, :D], torch.zeros(D))
    torch.testing.assert_close(key[0, D:], text[0])
    torch.testing.assert_close(key[1, :D], image[1])


def test_the_cosine_of_keys_is_the_mean_of_both() -> None:
    image, text = unit(5, 0), unit(5, 1)
    key = Concatenation(key_dim=2 * D)(image, text)
    torch.testing.assert_close(key @ key.T, (image @ image.T + text @ text.T) / 2)


def test_rows_do_not_mix() -> None:
    image, text, order = unit(5, 0), unit(5, 1), torch.tensor([3, 0, 4, 1, 2])
    fusion = Concatenation(key_dim=2 * D)
    assert torch.equal(fusion(image[order], text[order]), fusion(image, text)[order])


def test_no_gradient_is_nan_where_modalities_are_absent() -> None:
    image, text = unit(4, 0), unit(4, 1)
    image[0], text[1], image[2], text[2] = 0, 0, 0, 0
    image.requires_grad_()
    text.requires_grad_()
    key = Concatenation(key_dim=2 * D)(image, text)
    assert key.isfinite().all()
    key.sum().backward()
    assert image.grad is not None and image.grad.isfinite().all()
    assert text.grad is not None and text.grad.isfinite().all()


# TorchScript is what is exported; torch deprecates it.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
def test_a_trace_holds_at_another_batch_size() -> None:
    fusion = Concatenation(key_dim=2 * D).eval()
    traced = torch.jit.trace(fusion, (unit(3, 0), unit(3, 1)))
    image, text = unit(7, 2), unit(7, 3)
    image[0] = 0
    assert torch.equal(traced(image, text), fusion(image, text))


@pytest.mark.parametrize("key_dim", [0, 15, -2])
def test_a_width_without_halves(key_dim: int) -> None:
    with pytest.raises(ValueError, match=f"key_dim={key_dim}: expected an even width"):
        Concatenation(key_dim=key_dim)


def test_vectors_of_another_width() -> None:
    with pytest.raises(ValueError, match="8 and 8 wide, expected 4, half of key_dim=8"):
        Concatenation(key_dim=D)(unit(2, 0), unit(2, 1))
