"""The frozen parts of a key model's encoders, as data keep what they make."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn


class EncoderStem:
    """What the frozen part of an encoder makes of a batch, on the CPU.

    Args:
        encoder: With ``frozen`` (modules, or true where it is frozen whole) and ``stem``.
        device: Where it runs.
    """

    def __init__(self, encoder: Any, device: torch.device | str) -> None:
        self._encoder, self._device = encoder, device

    @property
    def fingerprint(self) -> str:
        """16 hex digits of class and weights as they are now: a checkpoint may have come since."""
        encoder = self._encoder
        frozen = encoder.frozen if isinstance(encoder.frozen, nn.Module) else encoder
        digest = hashlib.sha256(f"{type(encoder).__name__} {frozen}".encode())
        for name, tensor in sorted(frozen.state_dict().items()):
            content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(name.encode() + content.numpy().tobytes())
        return digest.hexdigest()[:16]

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Return features [B, ...]."""
        features: Tensor = self._encoder.stem(*(tensor.to(self._device) for tensor in inputs)).cpu()
        return features


def encoder_stems(model: Any, device: torch.device | str) -> dict[str, EncoderStem]:
    """Return the stems of a key model's encoders that have a frozen part."""
    encoders = {"image": model.image_encoder, "text": model.text_encoder}
    return {
        name: EncoderStem(encoder, device)
        for name, encoder in encoders.items()
        if getattr(encoder, "frozen", None)
    }
