"""An image tower through timm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keynet.models.lite0 import MEAN, STD, create_lite0


class ImageTower(nn.Module):
    """EfficientNet-Lite0 from uint8 pixels to pooled features, and where on them what is.

    Args:
        pretrained: Start from the packaged ImageNet weights.
        frozen_blocks: Stem and this many of the seven stages are not trained, and their BatchNorm
            statistics stay; 8 freezes the last convolution too, and so the whole tower.
        tokens: Give the last map's places too, S / 32 a side; their mean is the pooled feature.
            Only of a frozen tower.
        places: Beside the pooled feature, the last frozen map in this many places a side, each
            channel of each standardised by BatchNorm: what a picture of no class that was trained
            on looks like, and where. No gradient changes them.
    """

    trunk: Any  # timm gives its modules no types

    def __init__(
        self,
        *,
        pretrained: bool = True,
        frozen_blocks: int = 0,
        tokens: bool = False,
        places: int = 0,
    ) -> None:
        super().__init__()
        self.trunk = create_lite0(pretrained)
        self.num_features: int = self.trunk.num_features
        if not 0 <= frozen_blocks <= len(self.trunk.blocks) + 1:
            raise ValueError(
                f"frozen_blocks={frozen_blocks}: expected 0 to {len(self.trunk.blocks) + 1}"
            )
        whole = frozen_blocks > len(self.trunk.blocks)
        if tokens and not whole:
            raise ValueError(
                f"tokens of an image tower with frozen_blocks={frozen_blocks}: freeze it whole "
                f"({len(self.trunk.blocks) + 1})"
            )
        if type(places) is not int or places < 0 or (places and (whole or not frozen_blocks)):
            raise ValueError(
                f"places={places} of an image tower with frozen_blocks={frozen_blocks}: expected "
                f"0, or more with 1 to {len(self.trunk.blocks)} of them"
            )
        self.tokens, self.places = tokens, places
        self.frozen = nn.ModuleList()
        if frozen_blocks:
            trunk = self.trunk
            self.frozen = nn.ModuleList([trunk.conv_stem, trunk.bn1, *trunk.blocks[:frozen_blocks]])
            if whole:
                pool = _Tokens() if tokens else trunk.global_pool
                self.frozen.extend([trunk.conv_head, trunk.bn2, pool])
        self.frozen.requires_grad_(False).eval()
        self.frozen_blocks = frozen_blocks
        if places:
            further = [*(block[0].conv_pw for block in self.trunk.blocks[1:]), self.trunk.conv_head]
            seen = further[frozen_blocks - 1].in_channels * places**2
            self.place_norm = nn.BatchNorm1d(seen, affine=False)
            self.num_features += seen

    def train(self, mode: bool = True) -> ImageTower:
        """Set training mode; the frozen part stays in evaluation mode."""
        super().train(mode)
        self.frozen.eval()
        return self

    def stem(self, images: Tensor) -> Tensor:
        """Return what the frozen part makes of uint8 images, in bf16.

        A map [B, C, h, w], or of a whole tower its features, as ``forward`` gives them.

        There is a frozen part only with ``frozen_blocks``. No gradient passes it, so training can
        store its outputs; its forward is 4 to 6 times faster in bf16 on a CPU, while depthwise
        convolutions that are trained are slower in it.
        """
        with torch.no_grad(), torch.autocast(images.device.type, dtype=torch.bfloat16):
            x = _scaled(images)
            for part in self.frozen:
                x = part(x)
            return x.to(torch.bfloat16)

    def forward(self, images: Tensor) -> Tensor:
        """Return image features [B, num_features], with ``tokens`` [B, 1 + T, num_features].

        Args:
            images: uint8 [B, 3, S, S], or what ``stem`` made of them.
        """
        if images.dtype != torch.uint8:
            x = images
        elif self.training and len(self.frozen):
            x = self.stem(images)
        else:
            x = _scaled(images)
            if not len(self.frozen):
                pooled: Tensor = self.trunk(x)
                return pooled
            for part in self.frozen:
                x = part(x)
        x = x.float()
        if self.frozen_blocks > len(self.trunk.blocks):
            return x
        x = x.contiguous(memory_format=torch.channels_last)
        seen = [F.adaptive_avg_pool2d(x, self.places).flatten(1)] if self.places else []
        for block in self.trunk.blocks[self.frozen_blocks :]:
            x = block(x)
        features = self.trunk.forward_head(self.trunk.bn2(self.trunk.conv_head(x)))
        return torch.cat([features, *map(self.place_norm, seen)], dim=1) if seen else features


class _Tokens(nn.Module):
    """A map [B, C, h, w] to its mean and its places [B, 1 + h w, C]."""

    def forward(self, x: Tensor) -> Tensor:
        places = x.flatten(2).transpose(1, 2)
        return torch.cat([places.mean(1, keepdim=True), places], dim=1)


def _scaled(images: Tensor) -> Tensor:
    x = (images.float() / 255 - MEAN) / STD
    return x.contiguous(memory_format=torch.channels_last)
