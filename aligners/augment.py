"""Augmented keys in training: noise on a key, and the loss that makes key and code bear it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:  # whoever takes another augmentation needs no diffusers
    from aligners.diffusion_prior import DiffusionPrior


def without_noise(key: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """Return k~ = k - t * e [B, D] of SPEC T3, unit norm.

    Args:
        key: k [B, D], unit norm; of length sqrt(D) in the formula, where noise has that length too.
        noise: e or what a prior takes it for [B, D], entries of order one.
        t: [B], its share.
    """
    return F.normalize(key.shape[-1] ** 0.5 * key - t.unsqueeze(-1) * noise, dim=-1)


class KeyAugmentation(nn.Module):
    """What key augmentations share: how much noise. They draw from torch's global generator.

    Args:
        strength: Upper end of t, above 0 and below 1; t is drawn per row, uniform in (0, strength].

    Raises:
        ValueError: When the strength is out of range.
    """

    lacks_prior = False

    def __init__(self, *, strength: float) -> None:
        super().__init__()
        if type(strength) not in (int, float) or not 0 < strength < 1:
            raise ValueError(
                f"augment.keys.strength={strength!r}: expected a number above 0 and below 1"
            )
        self.strength = strength

    def draw(self, key: Tensor) -> Tensor:
        """Return t [B] for keys [B, D]."""
        # rand is in [0, 1), and t = 0 would be no noise.
        return self.strength * (1 - torch.rand(len(key), device=key.device, dtype=key.dtype))


class GaussianKeys(KeyAugmentation):
    """k - t * e with e itself: the prior's rival.

    A prior's e_hat is shorter, by as much as it is unsure: at one strength keys move further here.

    Args:
        strength: As in ``KeyAugmentation``.
    """

    def forward(self, key: Tensor, image: Tensor, text: Tensor) -> Tensor:
        """Return k~ [B, D], unit norm.

        Args:
            key: [B, D], unit norm.
            image: Not looked at.
            text: Not looked at.
        """
        return without_noise(key, torch.randn_like(key), self.draw(key))


class PriorKeys(KeyAugmentation):
    """k - t * e_hat with a trained, frozen prior, which is no part of checkpoints.

    The gradient of a loss flows to k alone: neither to the prior's weights nor through e_hat.

    Args:
        prior: File of a prior trained on keys of this model's kind; None leaves it to ``adopt``.
        fit: How a prior is fitted that is none yet: ``steps``, ``batch_size``, ``learning_rate``.
        strength: As in ``KeyAugmentation``.

    Raises:
        ValueError: When the file is missing, damaged or not of a prior.

    Source: SPEC T3.
    """

    def __init__(
        self, *, prior: str | Path | None, strength: float, fit: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(strength=strength)
        self.fit = dict(fit or {})
        self._held: tuple[DiffusionPrior, ...] = ()  # modules in a tuple are not registered
        if prior is not None:
            from aligners.diffusion_prior import DiffusionPrior

            self.adopt(DiffusionPrior.load(Path(prior)))

    @property
    def lacks_prior(self) -> bool:
        """Whether one is still to be adopted."""
        return not self._held

    def adopt(self, prior: DiffusionPrior) -> None:
        """Freeze a prior and use it."""
        self._held = (prior.eval().requires_grad_(False),)

    def forward(self, key: Tensor, image: Tensor, text: Tensor) -> Tensor:
        """Return k~ [B, D], unit norm.

        Args:
            key: [B, D], unit norm.
            image: The request's aligned image [B, C], zero where absent.
            text: The request's aligned text [B, C], zero where absent.

        Raises:
            ValueError: Without a prior, or when it is of other widths.
        """
        if not self._held:
            raise ValueError("no prior to augment keys with: give its file as augment.keys.prior")
        prior = self._held[0].to(key.device)  # nothing moves it with the model
        return prior.augment(key, image, text, self.draw(key))


class AugmentedContrast(nn.Module):
    """What augmented keys are for: their meaning and their code stay.

    The mean of two terms:

    * Contrast of each key against all other keys and all augmented ones. Those of its group are
      right, among them always its own augmented key.
    * Agreement: softplus(-s * augmented logit) over bits, s = +-1 the sign of the key's own logit,
      which is a target without gradient. Bits gain a margin against the noise.

    Args:
        temperature: Divides the cosines.
        scale: Of logits in the agreement; a larger one asks for a smaller margin.

    Raises:
        ValueError: When one of them is not positive.

    Source: the contrast is eq. 2 (L_out) of Khosla et al., Supervised Contrastive Learning, NeurIPS
    2020, with plain keys as the only anchors.
    """

    def __init__(self, *, temperature: float, scale: float = 1.0) -> None:
        super().__init__()
        for name, value in (("temperature", temperature), ("scale", scale)):
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(f"augment.loss.{name}={value!r}: expected a finite number above 0")
        self.temperature, self.scale = temperature, scale

    def forward(
        self,
        key: Tensor,
        augmented: Tensor,
        logits: Tensor,
        augmented_logits: Tensor,
        group: Tensor,
        left_out: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch.

        Args:
            key: k [B, D], unit norm.
            augmented: k~ [B, D], unit norm.
            logits: Code logits of k [B, K].
            augmented_logits: Code logits of k~ [B, K].
            group: int64 [B]; equal = equivalent.
            left_out: bool [B, B], pairs that are neither right nor wrong.
        """
        contrast = self.contrast(key, augmented, group, left_out)
        return (contrast + self.agreement(logits, augmented_logits)) / 2

    def contrast(
        self, key: Tensor, augmented: Tensor, group: Tensor, left_out: Tensor | None = None
    ) -> Tensor:
        """Return the mean over keys and what is right for them of -log p(right | all others)."""
        itself = torch.eye(len(key), dtype=torch.bool, device=key.device)
        others = torch.zeros_like(itself) if left_out is None else left_out
        absent = torch.cat([itself | others, others], dim=1)  # [B, 2B]
        similarity = key @ torch.cat([key, augmented]).T / self.temperature
        similarity = similarity.masked_fill(absent, float("-inf"))
        right = (group[:, None] == group[None]).repeat(1, 2) & ~absent
        log_share = similarity - similarity.logsumexp(1, keepdim=True)
        return (-log_share.masked_fill(~right, 0).sum(1) / right.sum(1)).mean()

    def agreement(self, logits: Tensor, augmented_logits: Tensor) -> Tensor:
        """Return the mean logistic loss of augmented bits against those of the keys."""
        sign = torch.where(logits.detach() >= 0, 1.0, -1.0)
        return F.softplus(-self.scale * sign * augmented_logits).mean()
