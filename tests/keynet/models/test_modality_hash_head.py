from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from keynet.models.modality_hash_head import ModalityHashHead
from keynet.types import CODE_BITS

D = 16  # of each half


def keys(count: int, seed: int, without: str = "") -> Tensor:
    """Unit keys [count, 32] of a narrow domain; ``without`` image or text in every third row."""
    generator = torch.Generator().manual_seed(seed)
    halves = F.normalize(torch.randn(count, 2, D, generator=generator) + 1.5, dim=2)
    if without:
        halves[::3, ["image", "text"].index(without)] = 0
    return F.normalize(halves.flatten(1), dim=1)


def trained_head(bits: int = 128, without: str = "") -> ModalityHashHead:
    torch.manual_seed(0)
    head = ModalityHashHead(key_dim=2 * D, bits=bits).train()
    for step in range(100):
        head(keys(64, seed=step, without=without))
    return head


def test_folded_matrix_is_the_batch_norm_of_evaluation_and_block_diagonal() -> None:
    head, rows = trained_head().eval(), keys(50, seed=1000)
    matrix, offset = head.folded()
    assert matrix.shape == (128, 2 * D)
    assert offset.shape == (128,)
    assert matrix[:64, D:].abs().max() == 0
    assert matrix[64:, :D].abs().max() == 0
    assert matrix[:64, :D].abs().min() > 0
    expected = [
        head.norms[name](head.linears[name](half))
        for name, half in zip(("image", "text"), rows.chunk(2, dim=1), strict=True)
    ]
    torch.testing.assert_close(head(rows), torch.cat(expected, dim=1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rows @ matrix.T + offset, head(rows), rtol=1e-4, atol=1e-4)


def test_each_half_of_the_code_is_of_one_modality() -> None:
    head, rows = trained_head().eval(), keys(6, seed=1000)
    assert head.blocks == {"image": (0, 64), "text": (64, 128)}
    other = rows.clone()
    other[:, D:] = keys(6, seed=1001)[:, D:]
    torch.testing.assert_close(head(other)[:, :64], head(rows)[:, :64])
    assert (head(other)[:, 64:] - head(rows)[:, 64:]).abs().max() > 0.1


def test_the_half_of_an_absent_modality_is_constant() -> None:
    head = trained_head().eval()
    alone = keys(9, seed=3, without="text")[::3]
    logits = head(alone)
    torch.testing.assert_close(logits[:, 64:], head.folded()[1][64:].expand(3, 64))
    assert torch.equal(
        head.train()(keys(9, seed=3, without="text"))[::3, 64:], logits[:1, 64:].expand(3, 64)
    )


def test_absent_modalities_do_not_move_the_statistics() -> None:
    """Codes of requests with both are balanced, however many have one alone."""
    rows = keys(2000, seed=1000, without="text")
    logits = trained_head(without="text").eval()(rows)
    ones = (logits[rows[:, D:].any(1)][:, 64:] >= 0).float().mean(0)
    assert ones.min() > 0.35
    assert ones.max() < 0.65


def test_a_batch_with_one_text_takes_the_running_statistics() -> None:
    head, rows = trained_head(), keys(8, seed=5)
    rows[1:, D:] = 0
    before = head.norms["text"].running_mean.clone()
    torch.testing.assert_close(head(rows)[:, 64:], head.eval()(rows)[:, 64:])
    assert torch.equal(head.norms["text"].running_mean, before)


def test_gradients_are_finite_and_reach_both_halves() -> None:
    head, rows = trained_head().train(), keys(8, seed=6, without="image").requires_grad_()
    head(rows).square().sum().backward()
    assert rows.grad is not None and rows.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


def test_rows_do_not_mix_in_evaluation() -> None:
    head, rows = trained_head().eval(), keys(8, seed=7, without="image")
    order = torch.tensor([7, 3, 0, 5, 1, 6, 4, 2])
    torch.testing.assert_close(head(rows[order]), head(rows)[order])
    torch.testing.assert_close(head(rows)[2:3], head(rows[2:3]))


# TorchScript is what is exported; torch deprecates it.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
def test_a_trace_holds_at_another_batch_size() -> None:
    head = trained_head().eval()
    traced = torch.jit.trace(head, keys(4, seed=8))
    rows = keys(9, seed=9, without="text")
    torch.testing.assert_close(traced(rows), head(rows))


@pytest.mark.parametrize("bits", [0, 96, 1024])
def test_bits_that_no_code_has(bits: int) -> None:
    with pytest.raises(ValueError, match=f"bits={bits}: expected one of"):
        ModalityHashHead(key_dim=32, bits=bits)


def test_a_width_without_halves() -> None:
    with pytest.raises(ValueError, match="key_dim=33: expected an even width"):
        ModalityHashHead(key_dim=33, bits=64)


@pytest.mark.parametrize("bits", CODE_BITS)
def test_every_code_length(bits: int) -> None:
    head = ModalityHashHead(key_dim=32, bits=bits).eval()
    assert head(keys(3, seed=0)).shape == (3, bits)
