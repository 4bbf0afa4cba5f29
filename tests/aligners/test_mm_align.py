from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aligners.mm_align import MMAlign


@pytest.fixture(params=[0, 24])
def aligner(request: pytest.FixtureRequest) -> MMAlign:
    torch.manual_seed(0)
    return MMAlign(
        input_dims={"image": 10, "text": 6, "audio": 3}, key_dim=8, hidden_dim=request.param
    )


def inputs() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    embeddings = {
        name: torch.randn(4, dim, generator=generator)
        for name, dim in {"image": 10, "text": 6, "audio": 3}.items()
    }
    masks = {name: torch.ones(4, dtype=torch.bool) for name in embeddings}
    masks["text"][1] = False
    return embeddings, masks


def test_unit_where_present_and_zero_where_absent(aligner: MMAlign) -> None:
    embeddings, masks = inputs()
    aligned = aligner(embeddings, masks)
    assert set(aligned) == {"image", "text", "audio"}
    for name, rows in aligned.items():
        assert rows.shape == (4, 8)
        torch.testing.assert_close(rows.norm(dim=1), masks[name].float())


def test_the_length_of_an_embedding_does_not_matter(aligner: MMAlign) -> None:
    embeddings, masks = inputs()
    longer = {name: 7.5 * rows for name, rows in embeddings.items()}
    for name, rows in aligner(longer, masks).items():
        torch.testing.assert_close(rows, aligner(embeddings, masks)[name])


def test_modalities_and_rows_do_not_mix(aligner: MMAlign) -> None:
    embeddings, masks = inputs()
    before = aligner(embeddings, masks)
    embeddings["image"][2] = -embeddings["image"][2]
    after = aligner(embeddings, masks)
    assert torch.equal(before["text"], after["text"])
    changed = (before["image"] != after["image"]).any(1)
    assert changed.tolist() == [False, False, True, False]


def test_linear_is_the_projection_of_the_unit_embedding() -> None:
    torch.manual_seed(0)
    aligner = MMAlign(input_dims={"image": 10}, key_dim=8)
    rows, mask = torch.randn(4, 10), torch.ones(4, dtype=torch.bool)
    layer = aligner.projections["image"]
    unit = rows / rows.norm(dim=1, keepdim=True) * 10**0.5
    expected = unit @ layer.weight.T + layer.bias
    expected = expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(aligner({"image": rows}, {"image": mask})["image"], expected)


def test_a_zero_embedding_has_a_finite_gradient(aligner: MMAlign) -> None:
    embeddings, masks = inputs()
    embeddings["image"][0] = 0
    embeddings["image"].requires_grad_()
    aligner(embeddings, masks)["image"].sum().backward()
    assert embeddings["image"].grad is not None
    assert embeddings["image"].grad.isfinite().all()


def test_no_gradient_from_an_absent_modality(aligner: MMAlign) -> None:
    embeddings, masks = inputs()
    embeddings["text"].requires_grad_()
    aligner(embeddings, masks)["text"].square().sum().mul(3).backward()
    assert embeddings["text"].grad is not None
    assert embeddings["text"].grad[1].abs().max() == 0
