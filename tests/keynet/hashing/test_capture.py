"""Lookups of one batch size: step by step on a CPU, as a CUDA graph on a GPU."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from keynet.hashing import hamming_search, hash_keys, words
from keynet.hashing.capture import CapturedLookup
from keynet.types import KeyOutput, RequestBatch

DIM, BITS, SIZE, K = 16, 64, 3, 4


class Mean(nn.Module):
    """Mean colours and mean tokens as a key."""

    def __init__(self) -> None:
        super().__init__()
        self.colour, self.table = nn.Linear(3, DIM), nn.Embedding(20, DIM)

    def forward(
        self, images: Tensor, image_mask: Tensor, tokens: Tensor, token_mask: Tensor
    ) -> KeyOutput:
        image = self.colour(images.float().mean((2, 3)) / 255) * image_mask[:, None]
        text = (self.table(tokens) * token_mask[..., None]).sum(1)
        key = nn.functional.normalize(image + text, dim=1)
        return KeyOutput(key, image, text, key, (image * text).sum(1))


def batch(seed: int, size: int = SIZE, device: str = "cpu") -> RequestBatch:
    made = torch.Generator().manual_seed(seed)
    tensors = (
        torch.randint(0, 255, (size, 3, 8, 8), generator=made, dtype=torch.uint8),
        torch.ones(size, dtype=torch.bool),
        torch.randint(0, 20, (size, 5), generator=made),
        torch.ones(size, 5, dtype=torch.bool),
        torch.arange(size),
        torch.arange(size),
    )
    return RequestBatch(*(tensor.to(device) for tensor in tensors))


def lookup_and_steps(device: str) -> CapturedLookup:
    """Compare lookups of three batches with the same steps, the store changing between them."""
    torch.manual_seed(0)
    model = Mean().to(device).eval()
    matrix = torch.randn(BITS, DIM, device=device), torch.randn(BITS, device=device)
    drawn = torch.randint(-(2**31), 2**31, (BITS // 32, 200), dtype=torch.int32)
    codes = drawn.to(device).T
    lookup = CapturedLookup(model, matrix, codes, K, batch(0, device=device))
    for seed in range(3):
        given = batch(seed, device=device)
        with torch.inference_mode():
            key = model(*given[:4]).key
            code = words(hash_keys(key, *matrix))
        codes[seed] = code[1]  # what is written into the store is found
        found = lookup(given)
        torch.testing.assert_close(found.key, key)
        torch.testing.assert_close(found.norms, key.norm(dim=1))
        assert torch.equal(found.code, code)
        distance, index = hamming_search(code, codes, K)
        assert torch.equal(found.distances, distance) and torch.equal(found.indices, index)
        assert (int(distance[1, 0]), int(index[1, 0])) == (0, seed)
    return lookup


def test_without_a_gpu_the_same_steps_run_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        lookup = lookup_and_steps("cpu")
    assert not lookup.captured
    assert caplog.messages.count("no CUDA device: lookups run step by step, not as a graph") == 1


@pytest.mark.gpu
def test_a_graph_finds_what_the_steps_find() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert lookup_and_steps("cuda").captured


def test_a_batch_of_another_size_is_refused() -> None:
    matrix = torch.randn(BITS, DIM), torch.randn(BITS)
    codes = torch.zeros(5, BITS // 32, dtype=torch.int32)
    lookup = CapturedLookup(Mean(), matrix, codes, K, batch(0))
    with pytest.raises(ValueError, match=r"images are torch.uint8 \[2, 3, 8, 8\]; this lookup"):
        lookup(batch(0, size=2))


def test_a_radius_and_a_wrong_store_are_checked_at_once() -> None:
    matrix = torch.randn(BITS, DIM), torch.randn(BITS)
    codes = torch.zeros(5, BITS // 32, dtype=torch.int32)
    none = CapturedLookup(Mean(), matrix, codes, K, batch(0), radius=0)(batch(0))
    assert (none.indices == -1).all() and (none.distances == BITS + 1).all()
    with pytest.raises(ValueError, match="of different widths"):
        CapturedLookup(Mean(), matrix, codes.repeat(1, 2), K, batch(0))
    beyond = CapturedLookup(Mean(), matrix, codes, 9, batch(0), radius=10**6)(batch(0))
    assert (beyond.indices[:, 5:] == -1).all()  # no row past the store


def test_a_store_with_scopes_is_searched_in_those_of_the_requests() -> None:
    matrix = torch.randn(BITS, DIM), torch.randn(BITS)
    codes = torch.zeros(6, BITS // 32, dtype=torch.int32)
    scopes = torch.tensor([7, 8, 7, 8, 9, 9], dtype=torch.int32)
    given = batch(0)
    lookup = CapturedLookup(Mean(), matrix, codes, 3, given, code_scopes=scopes)
    asked = torch.full((len(given.images),), 8, dtype=torch.int32)
    found = lookup(given, asked)
    assert (found.indices == torch.tensor([1, 3, -1])).all()
    with pytest.raises(ValueError, match="give both or neither"):
        lookup(given)
    with pytest.raises(ValueError, match=r"scopes are torch.int64 .*; expected int32"):
        lookup(given, asked.long())
