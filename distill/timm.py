"""Image encoders of timm: pictures to pooled features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from distill.teacher import FrozenTeacher, TeacherError
from keynet.models.checkpoint import READ_ERRORS, listed, one_line, require

SCHEMES = ("hf-hub:", "local-dir:")
WHITE = (255, 255, 255)


class TimmTeacher(FrozenTeacher):
    """A timm model without its classifier.

    Pictures keep their aspect and are padded to a white square, as ``keynet.pictures`` does,
    rather than cropped as in timm's evaluation: a cache must not be blind at the borders.

    Args:
        name: In reports and stores.
        model: Architecture, with a tag for ``pretrained=True`` (``resnet50.a1_in1k``).
        state_dict: Weights by timm's names, classifier or not; or
        pretrained: True for those of ``model``, or ``hf-hub:ORG/REPO``, or ``local-dir:FOLDER``.
        image_size: Pixels a side; by default those of the model's own configuration.
        autocast: bfloat16 where a float32 teacher runs on a CPU: half the time for convolutions.

    Raises:
        TeacherError: When the weights are absent, incomplete or another model's, or the model
            does not take pictures of this size.
    """

    def __init__(
        self,
        *,
        name: str,
        model: str,
        state_dict: Mapping[str, Tensor] | None = None,
        pretrained: bool | str = False,
        image_size: int | None = None,
        autocast: bool = True,
    ) -> None:
        timm = require("timm")
        if (state_dict is None) == (not pretrained):
            raise TeacherError(
                f"teacher {name}: weights of {model} are "
                f"{'not given' if state_dict is None else 'given twice'}; "
                "give either state_dict or pretrained"
            )
        if state_dict is not None:
            network = _from_mapping(name, model, state_dict, timm)
        else:
            network = _from_timm(name, model, pretrained, timm)
        config = timm.data.resolve_model_data_config(network)
        size = config["input_size"][-1] if image_size is None else image_size
        self._size, self.autocast = size, autocast
        self._resample = Image.Resampling[config["interpolation"].upper()]
        mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
        self._mean, self._std = mean, std
        super().__init__(
            name=name,
            module=network.to(memory_format=torch.channels_last),
            modalities=("image",),
            dim=_dim_at(name, model, network, size),
            preprocessing={
                "size": size,
                "fit": "longer side, padded to a white square",
                "interpolation": config["interpolation"],
                "mean": list(config["mean"]),
                "std": list(config["std"]),
            },
        )

    def pixels(self, picture: Image.Image) -> Tensor:
        scale = self._size / max(picture.size)
        width, height = (max(1, round(side * scale)) for side in picture.size)
        resized = picture.resize((width, height), self._resample, reducing_gap=3.0)
        square = Image.new("RGB", (self._size, self._size), WHITE)
        square.paste(resized, ((self._size - width) // 2, (self._size - height) // 2))
        values = torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255  # [3, S, S]
        return (values - self._mean) / self._std

    def image_features(self, pixels: Tensor) -> Tensor:
        enabled = self.autocast and pixels.device.type == "cpu" and pixels.dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            features: Tensor = self.module(pixels.contiguous(memory_format=torch.channels_last))
        return features


def _from_mapping(name: str, model: str, given: Mapping[str, Tensor], timm: Any) -> nn.Module:
    try:
        network: Any = timm.create_model(model, num_classes=0)
        heads = network.pretrained_cfg.get("classifier") or ()
        heads = (heads,) if isinstance(heads, str) else tuple(heads)
        own = network.state_dict()
        kept = {
            key: tensor
            for key, tensor in given.items()
            if key in own or not key.startswith(tuple(f"{head}." for head in heads))
        }
        keys = network.load_state_dict(kept, strict=False)
    except READ_ERRORS as error:
        raise TeacherError(
            f"teacher {name}: state_dict does not fit timm's {model} ({one_line(error)}); "
            "give weights of this model"
        ) from error
    for word, wrong in (("lacks", keys.missing_keys), ("has", keys.unexpected_keys)):
        if wrong:
            raise TeacherError(
                f"teacher {name}: state_dict {word} {listed(wrong)}, other than timm's {model}; "
                "give weights of this model"
            )
    loaded: nn.Module = network
    return loaded


def _from_timm(name: str, model: str, pretrained: bool | str, timm: Any) -> nn.Module:
    source = model if pretrained is True else str(pretrained)
    if pretrained is not True and not source.startswith(SCHEMES):
        raise TeacherError(
            f"teacher {name}: pretrained={pretrained}, expected true, hf-hub:ORG/REPO or "
            "local-dir:FOLDER"
        )
    try:
        # With its classifier, dropped after: timm checks no key when the classes differ.
        network: Any = timm.create_model(source, pretrained=True)
    except READ_ERRORS as error:
        raise TeacherError(
            f"teacher {name}: {source} cannot be read ({one_line(error)}); check the name, the "
            "network, and that config and weights are of one checkpoint"
        ) from error
    found = network.pretrained_cfg["architecture"]
    if not model.startswith(SCHEMES) and found != model.split(".")[0]:
        raise TeacherError(
            f"teacher {name}: {source} is a {found}, expected {model}; name it so or take another"
        )
    network.reset_classifier(0)
    loaded: nn.Module = network
    return loaded


@torch.no_grad()
def _dim_at(name: str, model: str, network: Any, size: int) -> int:
    """Return the width of the features at this size; towers with fixed positions are fitted."""
    try:
        if hasattr(network, "set_input_size"):
            network.set_input_size(img_size=(size, size))
        shape = network.eval()(torch.zeros(1, 3, size, size)).shape
    # timm asserts what a tower can take.
    except (AssertionError, *READ_ERRORS) as error:
        raise TeacherError(
            f"teacher {name}: {model} does not take pictures of {size} px ({one_line(error)}); "
            "give another image_size"
        ) from error
    if len(shape) != 2:
        raise TeacherError(
            f"teacher {name}: features of {model} are {tuple(shape)}, expected [1, D]; "
            "take a model that pools"
        )
    return int(shape[1])
