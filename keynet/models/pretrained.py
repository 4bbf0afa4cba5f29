"""What towers of published checkpoints share: frozen, trained, or trained through LoRA alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from keynet.models.lora import add_lora


class PretrainedTower(nn.Module):
    """A network of a published checkpoint: frozen, trained whole, or trained through LoRA alone.

    Args:
        network: With the checkpoint's weights.
        num_features: Width of what it gives.
        frozen: The checkpoint's weights are not trained.
        lora_rank: Of adapters that are trained beside the frozen weights; 0 for none.
        lora_targets: Names of the layers that get them.

    Raises:
        ValueError: When adapters are asked for beside weights that are trained.
    """

    network: Any  # its own package gives it no types

    def __init__(
        self,
        network: nn.Module,
        *,
        num_features: int,
        frozen: bool,
        lora_rank: int,
        lora_targets: Sequence[str],
    ) -> None:
        super().__init__()
        if lora_rank and not frozen:
            raise ValueError(
                f"lora_rank={lora_rank} with frozen=false: adapters stand beside frozen weights; "
                "set frozen=true, or lora_rank=0 to train all weights"
            )
        self.network = network.requires_grad_(not frozen)
        if lora_rank:
            add_lora(network, lora_rank, lora_targets)
        self.num_features = num_features
        self.frozen = frozen and not lora_rank
        self.train()

    def train(self, mode: bool = True) -> PretrainedTower:
        """Set training mode; a frozen network stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.network.eval()
        return self

    def _frozen_features(self, encode: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        assert self.frozen, "a tower that is trained has no stem"
        with torch.no_grad(), torch.autocast(inputs[0].device.type, dtype=torch.bfloat16):
            return encode(*inputs).to(torch.bfloat16)

    def _features(self, encode: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if not self.training:  # serving runs in the precision of its weights
            with _tracing():
                return encode(*inputs)
        if self.frozen:
            return self._frozen_features(encode, *inputs).float()
        with torch.autocast(inputs[0].device.type, dtype=torch.bfloat16):
            return encode(*inputs).float()


class PretrainedImageTower(PretrainedTower):
    """Pictures through a published network, scaled and normalised as in its training.

    Args:
        network: See ``PretrainedTower``, and for what is not named here.
        mean, std: Of the checkpoint's pixels in [0, 1], three each.
        image_size: S of the pictures to come.
        checkpoint_size: Height and width of the checkpoint's.

    Raises:
        ValueError: When the sizes differ.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        image_size: int,
        checkpoint_size: Sequence[int],
        **options: Any,
    ) -> None:
        if tuple(checkpoint_size) != (image_size, image_size):
            height, width = checkpoint_size
            raise ValueError(
                f"image_size={image_size} of a checkpoint for {height} x {width} pixels; "
                + (f"set data.image_size={height}" if height == width else "take a square one")
            )
        super().__init__(network, **options)
        # In the state, so that what is stored of another normalisation is told apart.
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))

    def stem(self, images: Tensor) -> Tensor:
        """Return a frozen tower's features in bf16, without gradients: training can store them."""
        return self._frozen_features(self._scaled, images)

    def forward(self, images: Tensor) -> Tensor:
        """Return features [B, num_features]; with tokens [B, 1 + T, num_features], pooled first.

        Args:
            images: uint8 [B, 3, S, S], or what ``stem`` made of them.
        """
        if images.is_floating_point():
            return images.float()
        return self._features(self._scaled, images)

    def _scaled(self, images: Tensor) -> Tensor:
        return self.encode((images.float() / 255 - self.mean) / self.std)

    def encode(self, pixels: Tensor) -> Tensor:
        """Return features of normalised pixels [B, 3, S, S]."""
        raise NotImplementedError


class PretrainedTextTower(PretrainedTower):
    """Texts through a published network.

    Args:
        network: See ``PretrainedTower``, and for what is not named here.
        max_tokens: Longest text, with the tokens that begin and end it.
        positions: Of the checkpoint.

    Raises:
        ValueError: When texts could be longer than the checkpoint takes.
    """

    def __init__(
        self, network: nn.Module, *, max_tokens: int, positions: int, **options: Any
    ) -> None:
        if max_tokens > positions:
            raise ValueError(
                f"max_tokens={max_tokens} of a checkpoint for {positions}; set data.max_tokens to "
                f"a multiple of 8 up to it: {positions - positions % 8}"
            )
        super().__init__(network, **options)
        self.max_tokens = max_tokens

    def stem(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return a frozen tower's features in bf16, without gradients: training can store them."""
        return self._frozen_features(self.encode, tokens, mask)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return features [B, num_features].

        Args:
            tokens: int64 [B, L], L <= max_tokens; or what ``stem`` made of them.
            mask: bool [B, L], true at the tokens, which stand first; of a row without any the
                features say nothing, and are finite.
        """
        if tokens.is_floating_point():
            return tokens.float()
        return self._features(self.encode, tokens, mask)

    def encode(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return features of tokens and mask [B, L]."""
        raise NotImplementedError


@contextmanager
def _tracing() -> Iterator[None]:
    """No warnings of the shapes that packages compare: the exporter checks a trace at others."""
    jit: Any = torch.jit
    if not jit.is_tracing():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jit.TracerWarning)
        yield
