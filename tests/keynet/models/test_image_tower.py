from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from keynet.models.image_tower import ImageTower

FROZEN = 3


def pictures(count: int = 6, size: int = 40) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def tower(frozen_blocks: int) -> ImageTower:
    torch.manual_seed(0)
    return ImageTower(pretrained=True, frozen_blocks=frozen_blocks)


def is_frozen(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "frozen" or parts[1] in ("conv_stem", "bn1") or (
        parts[1] == "blocks" and int(parts[2]) < FROZEN
    )  # fmt: skip


def test_only_the_trained_part_moves_in_a_training_step() -> None:
    model = tower(FROZEN).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    features = model(pictures())
    (
        features * torch.randn(features.shape, generator=torch.Generator().manual_seed(1))
    ).sum().backward()
    optimizer.step()
    moved = {
        name: not torch.equal(value, before[name]) for name, value in model.state_dict().items()
    }
    assert sum(map(is_frozen, moved)) > 50
    assert not [name for name in moved if is_frozen(name) and moved[name]]
    assert not [name for name in moved if not is_frozen(name) and not moved[name]]


def test_frozen_parameters_want_no_gradient_and_every_other_gets_one() -> None:
    model = tower(FROZEN).train()
    model(pictures()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (not is_frozen(name)), name
        assert (parameter.grad is None) == is_frozen(name), name


def test_evaluation_does_not_depend_on_frozen_blocks() -> None:
    x = pictures()
    with torch.no_grad():
        expected = tower(0).eval()(x)
        for frozen_blocks in (1, 7, 8):
            assert torch.equal(tower(frozen_blocks).eval()(x), expected)


@pytest.mark.parametrize("frozen_blocks", [1, FROZEN, 7, 8])
def test_the_forward_of_training_goes_through_the_same_layers(frozen_blocks: int) -> None:
    x = pictures()
    model = tower(frozen_blocks)
    with torch.no_grad():
        expected = model.eval()(x)
        model.train()
        model.trunk.eval()  # batch statistics aside, only bf16 in the frozen part is left
        found = model(x)
    assert found.dtype == torch.float32
    assert torch.cosine_similarity(found, expected).min() > 0.99
    assert not torch.equal(found, expected)


@pytest.mark.parametrize("started", ["as made", "after train", "after eval and train"])
def test_batch_statistics_of_the_frozen_part_stay_off(started: str) -> None:
    """Lightning trains a module in the mode in which it was made: it calls no ``train()``."""
    model = tower(FROZEN)
    if started != "as made":
        model = model.train() if started == "after train" else model.eval().train()
    assert not any(module.training for module in model.frozen.modules())
    assert model.trunk.blocks[FROZEN].training
    assert model.trunk.bn2.training


def test_nothing_is_frozen_with_no_frozen_blocks() -> None:
    model = tower(0)
    assert not len(model.frozen)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("frozen_blocks", [1, FROZEN, 7, 8])
def test_what_the_stem_makes_stands_for_the_pictures(frozen_blocks: int) -> None:
    """Training stores it, whatever the number of frozen blocks."""
    x = pictures()
    model = tower(frozen_blocks)
    with torch.no_grad():
        model.train()
        stored = model.stem(x)
        model.trunk.eval()
        found, expected = model(stored), model(x)
    assert stored.dtype == torch.bfloat16
    assert found.shape == expected.shape == (len(x), model.num_features)
    assert torch.cosine_similarity(found, expected).min() > 0.99


def test_the_stem_takes_no_gradient_and_leaves_its_statistics() -> None:
    model = tower(FROZEN)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not model.stem(pictures()).requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_stem_of_a_picture_does_not_depend_on_its_batch() -> None:
    x, model = pictures(), tower(FROZEN)
    whole, alone = model.stem(x).float(), model.stem(x[2:3]).float()
    torch.testing.assert_close(whole[2:3], alone, rtol=0.05, atol=0.05)


def test_features_of_a_picture_do_not_depend_on_the_batch() -> None:
    x = pictures()
    model = tower(FROZEN).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(x)[2:3], model(x[2:3]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("frozen_blocks", "channels"), [(1, 16), (FROZEN, 40), (7, 320)])
def test_places_are_the_last_frozen_map_averaged_and_standardised(
    frozen_blocks: int, channels: int
) -> None:
    x = pictures(size=96)
    torch.manual_seed(0)
    model = ImageTower(pretrained=True, frozen_blocks=frozen_blocks, places=3)
    assert model.num_features == 1280 + 9 * channels
    with torch.no_grad():
        stem = model.stem(x).float()
        side = stem.shape[-1] // 3
        averaged = stem.unfold(2, side, side).unfold(3, side, side).mean((-1, -2))
        expected = averaged.flatten(1) - averaged.flatten(1).mean(0)
        expected = expected / (averaged.flatten(1).var(0, correction=0) + 1e-5).sqrt()
        found = model.train()(model.stem(x))
        assert found.shape == (len(x), model.num_features)
        torch.testing.assert_close(found[:, 1280:], expected, rtol=1e-3, atol=1e-3)
        mean, variance = model.place_norm.running_mean, model.place_norm.running_var
        torch.testing.assert_close(mean, 0.1 * averaged.flatten(1).mean(0))
        expected = (averaged.flatten(1) - mean) / (variance + 1e-5).sqrt()
        found = model.eval()(model.stem(x))
        torch.testing.assert_close(found[:, 1280:], expected, rtol=1e-3, atol=1e-3)
        served = model(x)
        plain = tower(frozen_blocks)
        plain.trunk.load_state_dict(model.trunk.state_dict())
        assert torch.equal(served[:, :1280], plain.eval()(x))
        torch.testing.assert_close(served[2:3], model(x[2:3]), rtol=1e-4, atol=1e-4)
    assert not [name for name, _ in model.named_parameters() if name.startswith("place_norm")]


@pytest.mark.parametrize(
    ("frozen_blocks", "places"), [(0, 3), (8, 2), (5, -1), (5, None), (5, 2.0), (5, True)]
)
def test_places_are_of_a_partly_frozen_tower(frozen_blocks: int, places: Any) -> None:
    with pytest.raises(ValueError, match=f"places={places} of .* frozen_blocks={frozen_blocks}: "):
        ImageTower(pretrained=False, frozen_blocks=frozen_blocks, places=places)


def test_nothing_frozen_trains_everything() -> None:
    assert all(p.requires_grad for p in tower(0).parameters())


@pytest.mark.parametrize("frozen_blocks", [-1, 9])
def test_frozen_blocks_out_of_range(frozen_blocks: int) -> None:
    with pytest.raises(ValueError, match=f"frozen_blocks={frozen_blocks}: expected 0 to 8"):
        ImageTower(pretrained=False, frozen_blocks=frozen_blocks)


def test_num_features_is_the_width() -> None:
    model = tower(0).eval()
    with torch.no_grad():
        assert model(pictures(2)).shape == (2, model.num_features)


def test_tokens_stand_behind_their_mean_which_is_the_pooled_feature() -> None:
    x, plain = pictures(size=70), tower(8).eval()
    model = ImageTower(pretrained=True, frozen_blocks=8, tokens=True)
    with torch.no_grad():
        found, expected, stored = model.eval()(x), plain(x), model.stem(x)
        assert torch.equal(model.train()(stored), stored.float())
    assert found.shape == stored.shape == (len(x), 1 + 3 * 3, model.num_features)
    torch.testing.assert_close(found[:, 0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[:, 1:].mean(1), expected, rtol=1e-4, atol=1e-5)


def test_tokens_of_a_tower_that_is_trained_are_an_error() -> None:
    with pytest.raises(ValueError, match="frozen_blocks=5: freeze it whole"):
        ImageTower(pretrained=False, frozen_blocks=5, tokens=True)
