from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aligners.concatenation import Concatenation
from aligners.fusion import ResidualMLP, WeightedSum
from aligners.mm_align import MMAlign
from keynet.models.hash_head import HashHead
from keynet.models.image_tower import ImageTower
from keynet.models.key_model import KeyModel
from keynet.models.modality_hash_head import ModalityHashHead
from keynet.models.text_tower import TextTower
from keynet.types import KeyOutput

B, S, L, D, BITS = 6, 32, 8, 32, 64


def key_model(fusion: nn.Module) -> KeyModel:
    torch.manual_seed(0)
    return KeyModel(
        image_encoder=ImageTower(pretrained=True, frozen_blocks=2),
        text_encoder=TextTower(vocab_size=50, width=32, depth=1, heads=2, max_tokens=24),
        image_adapter=nn.Identity(),
        aligner=MMAlign(input_dims={"image": 1280, "text": 32}, key_dim=D),
        fusion=fusion,
        hash_head=HashHead(key_dim=D, bits=BITS),
    )


@pytest.fixture(scope="module", params=["residual_mlp", "weighted_sum"])
def model(request: pytest.FixtureRequest) -> KeyModel:
    torch.manual_seed(1)
    fusion = ResidualMLP(key_dim=D, hidden_dim=64) if request.param == "residual_mlp" else None
    return key_model(fusion or WeightedSum(key_dim=D)).eval()


def batch(count: int = B, length: int = L, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows 0 to 1 have both, row 2 the image alone, row 3 the text alone, the others both."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, S, S), dtype=torch.uint8, generator=generator)
    tokens = torch.randint(50, (count, length), generator=generator)
    lengths = torch.randint(1, length + 1, (count, 1), generator=generator)
    image_mask, token_mask = torch.ones(count, dtype=torch.bool), torch.arange(length) < lengths
    image_mask[3] = False
    token_mask[2] = False
    images[3] = 0
    return images, image_mask, tokens * token_mask, token_mask


def assert_equal_outputs(found: KeyOutput, expected: KeyOutput) -> None:
    for name, one, other in zip(KeyOutput._fields, found, expected, strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_norms(model: KeyModel) -> None:
    output = model(*batch())
    assert output.key.shape == output.image.shape == output.text.shape == (B, D)
    assert output.logits.shape == (B, BITS)
    torch.testing.assert_close(output.key.norm(dim=1), torch.ones(B))
    torch.testing.assert_close(output.image.norm(dim=1), torch.tensor([1.0, 1, 1, 0, 1, 1]))
    torch.testing.assert_close(output.text.norm(dim=1), torch.tensor([1.0, 1, 0, 1, 1, 1]))


def test_alignment_is_the_cosine_and_nan_exactly_where_one_is_absent(model: KeyModel) -> None:
    output = model(*batch())
    assert output.alignment.isnan().tolist() == [False, False, True, True, False, False]
    both = ~output.alignment.isnan()
    cosine = torch.cosine_similarity(output.image[both], output.text[both])
    torch.testing.assert_close(output.alignment[both], cosine)


def test_what_lies_under_a_false_mask_does_not_matter(model: KeyModel) -> None:
    images, image_mask, tokens, token_mask = batch()
    expected = model(images, image_mask, tokens, token_mask)
    images[3] = 255 - images[0]
    assert_equal_outputs(
        model(images, image_mask, torch.where(token_mask, tokens, 9), token_mask), expected
    )


def test_both_modalities_matter_where_present(model: KeyModel) -> None:
    images, image_mask, tokens, token_mask = batch()
    key = model(images, image_mask, tokens, token_mask).key
    other_image = model(images.flip(0), image_mask.flip(0), tokens, token_mask).key
    other_text = model(images, image_mask, tokens.flip(0), token_mask.flip(0)).key
    assert not torch.allclose(key[0], other_image[0], atol=1e-3)
    assert not torch.allclose(key[0], other_text[0], atol=1e-3)


def test_no_gradient_is_nan_with_absent_modalities(model: KeyModel) -> None:
    model.zero_grad()
    output = model(*batch())
    finite = output.alignment[~output.alignment.isnan()].sum()
    (output.key.sum() + output.logits.square().sum() + finite + output.image.sum()).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert any("image_encoder" in name for name in gradients)
    assert not [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    model.zero_grad()


def test_indices_equal_repeated_rows(model: KeyModel) -> None:
    images, _, tokens, token_mask = batch()
    image_index, text_index = torch.tensor([0, 0, 4, 3, 1]), torch.tensor([5, 0, 0, 2, 2])
    image_mask = torch.tensor([True, True, True, False, True])
    found = model(images, image_mask, tokens, token_mask, image_index, text_index)
    rows = images[image_index], image_mask, tokens[text_index], token_mask[text_index]
    assert_equal_outputs(found, model(*rows))


def test_fewer_pictures_than_requests(model: KeyModel) -> None:
    images, _, tokens, token_mask = batch()
    index = torch.zeros(B, dtype=torch.int64)
    output = model(images[:1], torch.ones(B, dtype=torch.bool), tokens, token_mask, index)
    assert output.key.shape == (B, D)
    torch.testing.assert_close(output.image, output.image[:1].expand(B, D))


def test_the_traced_model_is_the_eager_one_at_another_batch_size_and_length(
    model: KeyModel,
) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch.jit is deprecated and asked for (SPEC K2)
        traced = torch.jit.trace(model, batch(), strict=False, check_trace=False)
        for count, length in ((4, 3), (9, 24)):
            inputs = batch(count, length, seed=count)
            assert_equal_outputs(KeyOutput(*traced(*inputs)), model(*inputs))


def test_hash_matrix_gives_the_code_of_the_key(model: KeyModel) -> None:
    output = model(*batch())
    matrix, offset = model.hash_matrix()
    torch.testing.assert_close(output.key @ matrix.T + offset, output.logits, rtol=1e-4, atol=1e-4)


def test_the_key_does_not_depend_on_the_batch(model: KeyModel) -> None:
    inputs = batch()
    whole = model(*inputs)
    for row in range(B):
        alone = model(*(part[row : row + 1] for part in inputs))
        torch.testing.assert_close(alone.key, whole.key[row : row + 1], rtol=1e-4, atol=1e-5)


def test_widths_are_kept(model: KeyModel) -> None:
    assert (model.key_dim, model.num_bits) == (D, BITS)


class Pictures(nn.Module):
    num_features = 12

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :12].float()


def small(**parts: Any) -> KeyModel:
    made: dict[str, Any] = {
        "image_encoder": Pictures(),
        "text_encoder": TextTower(vocab_size=50, width=8, depth=1, heads=2, max_tokens=8),
        "image_adapter": nn.Identity(),
        "aligner": MMAlign(input_dims={"image": 12, "text": 8}, key_dim=D),
        "fusion": WeightedSum(key_dim=D),
        "hash_head": HashHead(key_dim=D, bits=BITS),
    }
    return KeyModel(**(made | parts))


def test_blocks_are_of_a_concatenation_alone() -> None:
    head = ModalityHashHead(key_dim=D, bits=BITS)
    with pytest.raises(ValueError, match="needs fusion=concatenation, not WeightedSum"):
        small(hash_head=head)
    blocks = {"image": (0, BITS // 2), "text": (BITS // 2, BITS)}
    assert small(fusion=Concatenation(key_dim=D), hash_head=head).code_blocks == blocks
    assert small().code_blocks is None


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"fusion": WeightedSum(key_dim=16)}, "fusion.key_dim=16 and hash_head.key_dim=32"),
        (
            {"aligner": MMAlign(input_dims={"image": 13, "text": 8}, key_dim=D)},
            "image encoder gives 12 features and the aligner takes 13; set encoder.dims.image=12",
        ),
        (
            {"aligner": MMAlign(input_dims={"image": 12, "text": 9}, key_dim=D)},
            "text encoder gives 8 features and the aligner takes 9",
        ),
    ],
)
def test_widths_that_do_not_fit_are_one_line(part: dict[str, nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**part)


@pytest.mark.parametrize("fusion", [WeightedSum(key_dim=D), Concatenation(key_dim=D)])
def test_an_aligner_of_another_width_is_one_line(fusion: nn.Module) -> None:
    model = small(fusion=fusion, aligner=MMAlign(input_dims={"image": 12, "text": 8}, key_dim=24))
    with pytest.raises(ValueError, match=r"are 24 .*wide.*aligner\.key_dim"):
        model(*batch())
