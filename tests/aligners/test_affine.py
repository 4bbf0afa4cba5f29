from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aligners.affine import (
    FITS,
    AffineAlign,
    AffineMap,
    least_squares,
    neighbourhood,
    neighbourhood_loss,
    procrustes,
)

DIMS = {"image": 10, "text": 6}
QUICK: dict[str, Any] = {"neighbourhood": {"steps": 5, "ridge": 1e-3}}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rotation(rows: int, columns: int) -> Tensor:
    """Semi-orthogonal [rows, columns]."""
    q, _ = torch.linalg.qr(normal(max(rows, columns), min(rows, columns), seed=9))
    return q if rows >= columns else q.T


def mapped(found: tuple[Tensor, Tensor], a: Tensor) -> Tensor:
    return a @ found[0] + found[1]


def test_least_squares_finds_a_planted_map_and_its_bias() -> None:
    a = normal(50, 10) + 4
    weight, bias = normal(10, 6, seed=1), normal(6, seed=2)
    found = least_squares(a, a @ weight + bias)
    torch.testing.assert_close(found.weight, weight, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.bias, bias, atol=1e-3, rtol=1e-3)


def test_least_squares_is_that_of_torch() -> None:
    a, b = normal(50, 10), normal(50, 6, seed=1)
    with_ones = torch.cat([a, torch.ones(50, 1)], 1)
    expected = torch.linalg.lstsq(with_ones, b).solution
    found = least_squares(a, b)
    torch.testing.assert_close(torch.cat([found.weight, found.bias[None]]), expected)


def test_a_ridge_shrinks_the_map_towards_the_mean_and_allows_few_pairs() -> None:
    a, b = normal(7, 10), normal(7, 6, seed=1) + 3
    sizes = [least_squares(a, b, ridge).weight.norm() for ridge in (1e-3, 1.0, 1e6)]
    assert sizes[0] > sizes[1] > sizes[2]
    far = mapped(least_squares(a, b, 1e6), a)
    torch.testing.assert_close(far, b.mean(0).expand(7, 6), atol=1e-4, rtol=0)
    # In units of the data: the same rows in other units have the same images.
    scaled = mapped(least_squares(100 * a, b, 0.5), 100 * a)
    torch.testing.assert_close(scaled, mapped(least_squares(a, b, 0.5), a))


def test_entries_that_never_vary_get_no_weight() -> None:
    a = normal(50, 10)
    a[:, 3] = 2
    weight = least_squares(a, normal(50, 6, seed=1)).weight
    assert weight[3].abs().max() < 1e-6 < weight[4].abs().max()


@pytest.mark.parametrize(("d_a", "d_b"), [(6, 6), (6, 10)])
def test_procrustes_finds_a_planted_rotation_scale_and_shift(d_a: int, d_b: int) -> None:
    a = normal(40, d_a) - 2
    b = 1.7 * a @ rotation(d_a, d_b) + normal(d_b, seed=2)
    found = procrustes(a, b)
    torch.testing.assert_close(mapped(found, a), b, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.weight, 1.7 * rotation(d_a, d_b), atol=1e-5, rtol=1e-5)


def test_procrustes_keeps_ratios_of_distances() -> None:
    a, b = normal(40, 6), normal(40, 10, seed=1)
    ratio = torch.pdist(mapped(procrustes(a, b), a)) / torch.pdist(a)
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


def test_procrustes_into_a_narrower_space_is_the_padded_rotation() -> None:
    a, b = normal(60, 10), normal(60, 6, seed=1)
    found = procrustes(a, b)
    centred = a - a.mean(0), F.pad(b - b.mean(0), (0, 4))
    left, _, right = torch.linalg.svd(centred[0].T @ centred[1])
    direction = (left @ right)[:, :6]
    cosine = F.cosine_similarity(found.weight.flatten(), direction.flatten(), dim=0)
    assert cosine > 1 - 1e-5
    # Its scale is the best for the rotation.
    error = (mapped(found, a) - b).square().sum()
    for scale in (0.9, 1.1):
        other = centred[0] @ (scale * found.weight) + b.mean(0)
        assert (other - b).square().sum() > error


def test_no_rotation_fits_better_than_procrustes() -> None:
    a, b = normal(40, 6), normal(40, 6, seed=1)
    found = procrustes(a, b)
    scale = torch.linalg.matrix_norm(found.weight, 2)
    error = (mapped(found, a) - b).square().sum()
    for seed in range(20):
        q, _ = torch.linalg.qr(normal(6, 6, seed=10 + seed))
        other = (a - a.mean(0)) @ (scale * q) + b.mean(0)
        assert (other - b).square().sum() >= error


def test_neighbourhood_loss_by_hand() -> None:
    b = torch.eye(2)
    loss = neighbourhood_loss(b.flip(0), b, temperature=1.0)
    p = torch.softmax(torch.tensor([1.0, 0.0]), 0)
    expected = (p * (p / p.flip(0)).log()).sum()
    torch.testing.assert_close(loss, expected)


def test_neighbourhood_loss_is_zero_for_the_partners_themselves_whatever_their_length() -> None:
    b = normal(12, 6)
    assert neighbourhood_loss(3 * b, b).abs() < 1e-6
    assert neighbourhood_loss(b.roll(1, 0), b) > 0.1


def test_equal_partners_share_their_weight() -> None:
    """Two pictures of one caption: neither is told to be far from the other's caption."""
    b = normal(6, 8)
    b[1] = b[0]
    rows = b.clone()
    rows[[0, 1]] = rows[[1, 0]]
    assert neighbourhood_loss(rows, b).abs() < 1e-6


def test_neighbourhood_improves_its_loss_on_new_pairs() -> None:
    latent = normal(400, 8)
    a = F.normalize(latent @ normal(8, 20, seed=1) + 2 * normal(400, 20, seed=2), dim=1)
    b = F.normalize(latent @ normal(8, 12, seed=3), dim=1)
    # The least squared error draws what is uncertain to the mean, away from every neighbour.
    start = least_squares(a[:300], b[:300], 1.0)
    found = neighbourhood(a[:300], b[:300], steps=60)
    before, after = (neighbourhood_loss(mapped(f, a[300:]), b[300:]) for f in (start, found))
    assert after < 0.95 * before
    again = neighbourhood(a[:300], b[:300], steps=60)
    assert torch.equal(found.weight, again.weight)
    assert not found.weight.requires_grad


def test_neighbourhood_leaves_the_random_state_alone() -> None:
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    neighbourhood(normal(20, 5), normal(20, 4, seed=1), steps=2)
    assert torch.equal(torch.randn(3), expected)


@pytest.mark.parametrize("method", FITS)
def test_every_method_fits_a_module(method: str) -> None:
    a, b = normal(40, 10), normal(40, 6, seed=1)
    fitted = AffineMap(in_dim=10, out_dim=6)
    assert fitted.fit(a, b, method, **QUICK.get(method, {})) is fitted
    expected = FITS[method](a, b, **QUICK.get(method, {}))
    torch.testing.assert_close(fitted(a), mapped(expected, a))
    assert fitted.weight.requires_grad and fitted.bias.requires_grad


@pytest.mark.parametrize("method", FITS)
@pytest.mark.parametrize("spoil", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(method: str, spoil: float) -> None:
    a, b = normal(40, 10), normal(40, 6, seed=1)
    b[7, 2] = spoil
    with pytest.raises(ValueError, match="b row 7 is not finite"):
        FITS[method](a, b)


@pytest.mark.parametrize("method", FITS)
def test_rows_that_are_no_pairs_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match="a has 40 rows, b 39"):
        FITS[method](normal(40, 10), normal(39, 6))
    with pytest.raises(ValueError, match=r"b has shape \(40,\)"):
        FITS[method](normal(40, 10), normal(40))


@pytest.mark.parametrize(
    ("method", "pairs", "least"),
    [("least_squares", 10, 11), ("procrustes", 6, 7), ("neighbourhood", 1, 2)],
)
def test_too_few_pairs_are_refused(method: str, pairs: int, least: int) -> None:
    with pytest.raises(ValueError, match=f"{pairs} pairs .* at least {least} are needed"):
        FITS[method](normal(pairs, 10), normal(pairs, 6))
    FITS[method](normal(least, 10), normal(least, 6), **QUICK.get(method, {}))


def test_settings_and_widths_out_of_range_are_refused() -> None:
    a, b = normal(40, 10), normal(40, 6)
    with pytest.raises(ValueError, match=r"ridge=-1.*at least 0"):
        least_squares(a, b, -1)
    with pytest.raises(ValueError, match="temperature=0"):
        neighbourhood_loss(b, b, 0)
    with pytest.raises(ValueError, match=r"\(40, 10\), their partners \(40, 6\)"):
        neighbourhood_loss(a, b)
    with pytest.raises(ValueError, match="all rows of a are equal"):
        procrustes(torch.ones(40, 10), b)
    affine = AffineMap(in_dim=10, out_dim=6)
    with pytest.raises(ValueError, match="a is 9 wide, this map takes 10"):
        affine.fit(a[:, :9], b)
    with pytest.raises(ValueError, match="b is 5 wide, this map takes 6"):
        affine.fit(a, b[:, :5])
    with pytest.raises(ValueError, match="method='lstsq': expected one of least_squares, "):
        affine.fit(a, b, "lstsq")


@pytest.fixture
def aligner() -> AffineAlign:
    torch.manual_seed(0)
    return AffineAlign(input_dims=DIMS, key_dim=6)


def inputs(count: int = 4) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    embeddings = {name: normal(count, dim, seed=dim) for name, dim in DIMS.items()}
    masks = {name: torch.ones(count, dtype=torch.bool) for name in DIMS}
    masks["text"][1] = False
    masks["image"][2] = False
    return embeddings, masks


def test_unit_where_present_and_zero_where_absent(aligner: AffineAlign) -> None:
    embeddings, masks = inputs()
    aligned = aligner(embeddings, masks)
    assert set(aligned) == {"image", "text"}
    for name, rows in aligned.items():
        assert rows.shape == (4, 6)
        torch.testing.assert_close(rows.norm(dim=1), masks[name].float())
    present = masks["text"]
    unit = F.normalize(embeddings["text"], dim=1)
    torch.testing.assert_close(aligned["text"][present], unit[present])  # stays


def test_the_other_way_round() -> None:
    aligner = AffineAlign(input_dims=DIMS, source="text", target="image", key_dim=10)
    embeddings, masks = inputs()
    aligned = aligner(embeddings, masks)
    assert aligned["text"].shape == (4, 10)
    torch.testing.assert_close(aligned["image"][0], F.normalize(embeddings["image"][0], dim=0))


def test_what_lies_under_a_mask_does_not_matter(aligner: AffineAlign) -> None:
    embeddings, masks = inputs()
    before = aligner(embeddings, masks)
    embeddings["text"][1] = float("nan")
    embeddings["image"][2] = float("inf")
    after = aligner(embeddings, masks)
    for name in DIMS:
        assert torch.equal(before[name], after[name])


def test_rows_do_not_mix(aligner: AffineAlign) -> None:
    embeddings, masks = inputs()
    order = torch.tensor([2, 0, 3, 1])
    aligned = aligner(embeddings, masks)
    turned = aligner(
        {name: rows[order] for name, rows in embeddings.items()},
        {name: mask[order] for name, mask in masks.items()},
    )
    for name in DIMS:
        torch.testing.assert_close(turned[name], aligned[name][order])


def test_gradients_are_finite_and_reach_the_map_alone(aligner: AffineAlign) -> None:
    embeddings, masks = inputs()
    for rows in embeddings.values():
        rows.requires_grad_()
    (aligner(embeddings, masks)["image"][:, 0].sum()).backward()
    assert [name for name, _ in aligner.named_parameters()] == ["map.weight", "map.bias"]
    for parameter in aligner.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0
    assert embeddings["image"].grad is not None
    assert embeddings["image"].grad.isfinite().all()
    assert embeddings["image"].grad[2].abs().max() == 0


def test_training_brings_pairs_together(aligner: AffineAlign) -> None:
    text = normal(60, 6, seed=3)
    embeddings = {"image": text @ normal(6, 10, seed=4) + 1, "text": text}
    masks = {name: torch.ones(60, dtype=torch.bool) for name in DIMS}

    def loss() -> Tensor:
        aligned = aligner(embeddings, masks)
        return neighbourhood_loss(aligned["image"], aligned["text"])

    before = loss().item()
    optimizer = torch.optim.Adam(aligner.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.2 * before


def test_a_closed_form_start(aligner: AffineAlign) -> None:
    text = normal(60, 6, seed=3)
    image = text @ normal(6, 10, seed=4)
    units = [torch.nn.functional.normalize(rows, dim=-1) for rows in (image, text)]
    aligner.map.fit(*units, "least_squares", ridge=1e-6)
    masks = {name: torch.ones(60, dtype=torch.bool) for name in DIMS}
    aligned = aligner({"image": 5 * image, "text": text}, masks)
    assert (aligned["image"] * aligned["text"]).sum(1).mean() > 0.9


def test_a_trace_holds_at_another_batch_size(aligner: AffineAlign) -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.aligner = aligner

        def forward(self, image: Tensor, text: Tensor, seen: Tensor, read: Tensor) -> Any:
            aligned = self.aligner({"image": image, "text": text}, {"image": seen, "text": read})
            return aligned["image"], aligned["text"]

    def arguments(count: int) -> tuple[Tensor, ...]:
        embeddings, masks = inputs(count)
        return embeddings["image"], embeddings["text"], masks["image"], masks["text"]

    plain = Plain().eval()
    with pytest.warns((FutureWarning, DeprecationWarning), match="torch.jit"):
        traced = torch.jit.trace(plain, arguments(4))
    for expected, found in zip(plain(*arguments(7)), traced(*arguments(7)), strict=True):
        assert torch.equal(expected, found)


def test_other_modalities_and_another_key_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"key_dim=256.*text, which is 6 wide; give key_dim=6"):
        AffineAlign(input_dims=DIMS, key_dim=256)
    with pytest.raises(ValueError, match=r"image, text, audio.*two modalities"):
        AffineAlign(input_dims={**DIMS, "audio": 3}, key_dim=6)
    with pytest.raises(ValueError, match="source is text, target text"):
        AffineAlign(input_dims=DIMS, source="text", key_dim=6)
