from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from aligners.mm_align import LightAlign, MMAlign


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


def test_nothing_under_a_false_mask_reaches_output_or_gradient(aligner: MMAlign) -> None:
    embeddings, masks = inputs()
    expected = aligner(embeddings, masks)
    for junk in (float("nan"), float("inf"), 0.0, 1e30):
        embeddings["text"][1] = junk
        aligned = aligner(embeddings, masks)
        assert all(torch.equal(aligned[name], rows) for name, rows in expected.items())
        aligner.zero_grad()
        sum(rows.square().sum() + rows.sum() for rows in aligned.values()).backward()
        assert all(weight.grad.isfinite().all() for weight in aligner.parameters())


def test_permuted_rows_give_permuted_rows(aligner: MMAlign) -> None:
    embeddings, masks = inputs()
    order = torch.tensor([2, 0, 3, 1])
    permuted = aligner(
        {n: e[order] for n, e in embeddings.items()}, {n: m[order] for n, m in masks.items()}
    )
    for name, rows in aligner(embeddings, masks).items():
        torch.testing.assert_close(permuted[name], rows[order])


def test_a_modality_left_out_is_absent_from_every_row(aligner: MMAlign) -> None:
    embeddings, masks = inputs()
    masks["audio"][:] = False
    expected = aligner(embeddings, masks)
    del embeddings["audio"]
    for given in (masks, {name: masks[name] for name in embeddings}):
        aligned = aligner(embeddings, given)
        assert list(aligned) == ["image", "text", "audio"]
        assert all(torch.equal(aligned[name], rows) for name, rows in expected.items())


def test_what_does_not_fit_is_one_clear_line(aligner: MMAlign) -> None:
    cases = {
        "unknown modality 'video': this head has image, text, audio": {"video": torch.ones(4, 3)},
        r"text embeddings are torch.float32 \[4, 7\]: expected \[4, 6\]": {
            "text": torch.ones(4, 7)
        },
        r"text embeddings are torch.float32 \[3, 6\]: expected \[4, 6\]": {
            "text": torch.ones(3, 6)
        },
        r"text embeddings are torch.float32 \[6\]: expected \[4, 6\]": {"text": torch.ones(6)},
        "image embeddings are .*: expected": {"image": torch.tensor(1.0)},
        r"text embeddings are torch.int64 \[4, 6\]: cast them to torch.float32": {
            "text": torch.ones(4, 6, dtype=torch.int64)
        },
        "text embeddings are torch.float16": {"text": torch.ones(4, 6).half()},
    }
    for message, wrong in cases.items():
        embeddings, masks = inputs()
        with pytest.raises(ValueError, match=f"^{message}"):
            aligner(embeddings | wrong, masks)


def test_masks_that_do_not_fit(aligner: MMAlign) -> None:
    embeddings, masks = inputs()
    for wrong in (torch.ones(4), torch.ones(3, dtype=torch.bool), torch.ones(4, 1).bool()):
        with pytest.raises(ValueError, match=r"^text mask is .*: expected torch.bool \[4\]$"):
            aligner(embeddings, masks | {"text": wrong})
    with pytest.raises(ValueError, match=r"^text has embeddings but no mask"):
        aligner(embeddings, {"image": masks["image"], "audio": masks["audio"]})
    with pytest.raises(ValueError, match=r"^text has no embeddings, but its mask"):
        aligner({"image": embeddings["image"]}, masks)
    with pytest.raises(ValueError, match=r"^no embeddings given: expected at least one of image,"):
        aligner({}, {})


def test_half_embeddings_pass_under_autocast(aligner: MMAlign) -> None:
    embeddings, masks = inputs()
    half = {name: rows.bfloat16() for name, rows in embeddings.items()}
    with torch.autocast("cpu", torch.bfloat16):
        aligned = aligner(half, masks)
    for name, rows in aligner(embeddings, masks).items():
        torch.testing.assert_close(aligned[name].float(), rows, atol=0.03, rtol=0)


@pytest.mark.parametrize("hidden_dim", [0, 24])
def test_the_light_form_gives_the_same_vectors(hidden_dim: int) -> None:
    torch.manual_seed(0)
    head = MMAlign(
        input_dims={"image": 96, "text": 50}, key_dim=32, hidden_dim=hidden_dim, dropout=0.5
    )
    state = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    rng = torch.get_rng_state()
    light = head.frozen()
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(tensor, state[name]) for name, tensor in head.state_dict().items())
    assert all(weight.requires_grad for weight in head.parameters())
    embeddings = {"image": torch.randn(50, 96), "text": 5 * torch.randn(50, 50)}
    masks = {"image": torch.arange(50) > 3, "text": torch.arange(50) < 40}
    expected = head.eval()(embeddings, masks)
    for light_or_new in (light.train(), rebuilt(light, hidden_dim)):
        found = light_or_new(embeddings, masks)
        for name, rows in expected.items():
            torch.testing.assert_close(found[name], rows, atol=1e-6, rtol=0)
            assert not found[name].requires_grad


def rebuilt(light: LightAlign, hidden_dim: int) -> LightAlign:
    new = LightAlign(input_dims={"image": 96, "text": 50}, key_dim=32, hidden_dim=hidden_dim)
    new.load_state_dict(light.state_dict())
    return new


def test_the_light_form_of_a_linear_head_is_linear_layers_alone() -> None:
    light = MMAlign(input_dims={"image": 768, "text": 6}, key_dim=512, dropout=0.3).frozen()
    assert {type(leaf) for leaf in light.modules() if not [*leaf.children()]} == {nn.Linear}
    assert (light.layers["image"].in_features, light.layers["image"].out_features) == (768, 512)
    assert not light.training and not any(weight.requires_grad for weight in light.parameters())


def test_checkpoint_names(aligner: MMAlign) -> None:
    names = set(aligner.state_dict())
    inner = {"projections.text.weight", "projections.text.bias"}
    deep = {f"projections.text.{n}.{kind}" for n in (0, 2) for kind in ("weight", "bias")}
    assert {name for name in names if ".text." in name} in (inner, deep)
    assert not names & set(aligner.frozen().state_dict())


class Pair(nn.Module):
    """The head as a key model calls it, one modality never there."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, image: Tensor, text: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        aligned = self.head({"image": image, "text": text}, {"image": mask, "text": ~mask})
        return aligned["image"], aligned["text"], aligned["audio"]


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.filterwarnings(r"ignore:`torch\.jit:DeprecationWarning")
@pytest.mark.filterwarnings(r"ignore:`torch\.jit:FutureWarning")
def test_a_trace_is_exact_at_another_batch_size(aligner: MMAlign, light: bool) -> None:
    pair = Pair(aligner.frozen() if light else aligner).eval()
    small = torch.randn(2, 10), torch.randn(2, 6), torch.tensor([True, False])
    large = torch.randn(5, 10), torch.randn(5, 6), torch.tensor([True, False, True, True, False])
    traced = torch.jit.trace(pair, small)  # a TracerWarning is an error, as any warning
    for found, expected in zip(traced(*large), pair(*large), strict=True):
        assert torch.equal(found, expected)
    assert not traced(*large)[2].any() and traced(*large)[2].shape == (5, 8)


@pytest.mark.slow  # the first export of a process takes seconds
def test_an_export_takes_another_batch_size() -> None:
    pair = Pair(MMAlign(input_dims={"image": 10, "text": 6, "audio": 3}, key_dim=8)).eval()
    batch = torch.export.Dim("batch")
    small = torch.randn(2, 10), torch.randn(2, 6), torch.tensor([True, False])
    exported = torch.export.export(pair, small, dynamic_shapes=({0: batch},) * 3).module()
    large = torch.randn(5, 10), torch.randn(5, 6), torch.tensor([True, False, True, True, False])
    for found, expected in zip(exported(*large), pair(*large), strict=True):
        torch.testing.assert_close(found, expected)
