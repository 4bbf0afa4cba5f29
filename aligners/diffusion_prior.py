"""A diffusion prior over keys: what noise does a noised key of this request carry?"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import torch
from diffusers import PriorTransformer
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from aligners.augment import without_noise
from aligners.losses import noise_error, retrieval_consistency

log = logging.getLogger(__name__)

TIMESTEPS = 1000  # t in (0, 1) as the integers of Ho et al., DDPM, 2020
METADATA = "diffusion_prior"
OF = "of"  # beside it in the metadata
DRAWS = 4  # of noise for each held-out key
FEWEST = 20  # keys to fit: two of them are held out


class DiffusionPrior(nn.Module):
    """Predicts e of z_t = (1 - t) * k + t * e from the request; augments keys by what it predicts.

    Four tokens attend to each other: aligned image, aligned text, t, and z_t, from which e_hat is
    read. Image and text are the two rows of the transformer's ``proj_embedding``, which lie in one
    space and share its projection; it is without its learned query (``prd``), so that its four
    ``additional_embeddings`` are those tokens. Unit vectors are scaled by sqrt(D): noise has
    entries of order one.

    What k~ = k - t * e_hat does: k keeps its full share and noise is taken away that k never had,
    so a perfect prediction gives k - t * e, the key under plain Gaussian noise (``GaussianKeys``).
    In terms of the key k_hat = (z_t - t * e_hat) / (1 - t) that the prediction stands for,
    k~ = k - t * e + (1 - t) * (k_hat - k): the prior differs from Gaussian noise by as much as it
    is wrong about the key. We keep the formula of the source.

    The losses pull against each other for the same reason: without normalisation, consistency is
    t * ||e_hat||, smallest where the prior predicts nothing.

    Args:
        key_dim: Width D of keys.
        condition_dim: Width C of aligned images and texts; None is that of keys.
        num_layers: Transformer blocks.
        num_heads: Attention heads.
        head_dim: Width of a head.

    Source: SPEC T3; the transformer is unCLIP's prior (Ramesh et al., 2022) in diffusers.
    """

    def __init__(
        self,
        *,
        key_dim: int,
        condition_dim: int | None = None,
        num_layers: int = 2,
        num_heads: int = 4,
        head_dim: int = 64,
    ) -> None:
        super().__init__()
        self.settings = {
            "key_dim": key_dim,
            "condition_dim": key_dim if condition_dim is None else condition_dim,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "head_dim": head_dim,
        }
        for name, value in self.settings.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r}: expected a whole number above 0")
        self.key_dim, self.condition_dim = key_dim, self.settings["condition_dim"]
        self.of: str | None = None  # digest of the weights whose keys it is fitted to, where known
        self.transformer = self._transformer()

    def _transformer(self) -> PriorTransformer:
        transformer = PriorTransformer(
            num_attention_heads=self.settings["num_heads"],
            attention_head_dim=self.settings["head_dim"],
            num_layers=self.settings["num_layers"],
            embedding_dim=self.key_dim,
            embedding_proj_dim=self.condition_dim,
            num_embeddings=0,
            additional_embeddings=4,
            encoder_hid_proj_type=None,
            added_emb_type=None,
        )
        # Zeros there: image and text would start as one bag.
        nn.init.normal_(transformer.positional_embedding, std=0.02)
        # diffusers reads these when it samples, which we do not; weight decay would reach them.
        transformer.clip_mean.requires_grad_(False)
        transformer.clip_std.requires_grad_(False)
        return transformer

    def noised(self, keys: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return z_t [B, D] of unit keys [B, D], noise [B, D] and t [B]."""
        t = t.unsqueeze(-1)
        return (1 - t) * (self.key_dim**0.5 * keys) + t * noise

    def forward(self, noised: Tensor, image: Tensor, text: Tensor, t: Tensor) -> Tensor:
        """Return e_hat [B, D].

        Args:
            noised: z_t [B, D].
            image: The request's aligned image [B, C], unit norm, or zero where absent.
            text: The request's aligned text [B, C], unit norm, or zero where absent.
            t: [B], in (0, 1).

        Raises:
            ValueError: On other widths or another t.
        """
        for name, rows, width in (
            ("keys", noised, self.key_dim),
            ("image", image, self.condition_dim),
            ("text", text, self.condition_dim),
        ):
            if rows.shape != (len(noised), width):
                raise ValueError(
                    f"{name} {tuple(rows.shape)} do not fit a prior of {(len(noised), width)}; "
                    "train one on keys of this model"
                )
        if not ((t > 0) & (t < 1)).all():
            raise ValueError(f"t from {t.min().item()} to {t.max().item()}: expected within (0, 1)")
        conditions = self.condition_dim**0.5 * torch.stack([image, text], dim=1)  # [B, 2, C]
        steps = (t * TIMESTEPS).long()
        predicted: Tensor = self.transformer(noised, steps, conditions, return_dict=False)[0]
        return predicted.squeeze(1)  # one token is read: [B, 1, D]

    def training_loss(
        self, keys: Tensor, image: Tensor, text: Tensor, generator: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Return both losses, ``consistency`` and ``noise``, for t uniform in (0, 1).

        Args:
            keys: [B, D], unit norm.
            image: [B, C], unit norm, or zero where absent.
            text: [B, C], unit norm, or zero where absent.
            generator: Of noise and t, on the device of the keys; None is torch's global one.
        """
        noise = _normal(keys, generator)
        t = torch.rand(len(keys), generator=generator, device=keys.device, dtype=keys.dtype)
        t = t.clamp(1e-4, 1 - 1e-4)
        predicted = self(self.noised(keys, noise, t), image, text, t)
        return {
            "consistency": retrieval_consistency(keys, without_noise(keys, predicted, t)),
            "noise": noise_error(noise, predicted),
        }

    def augment(
        self,
        keys: Tensor,
        image: Tensor,
        text: Tensor,
        t: Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return k~ = k - t * e_hat [B, D], unit norm; e_hat is a constant to gradients.

        Args:
            keys: [B, D], unit norm.
            image: [B, C], unit norm, or zero where absent.
            text: [B, C], unit norm, or zero where absent.
            t: [B], in (0, 1).
            generator: Of noise, on the device of the keys; None is torch's global one.

        Raises:
            ValueError: On other widths or another t.
        """
        with torch.no_grad():
            noised = self.noised(keys, _normal(keys, generator), t)
            predicted = self(noised, image, text, t).to(keys.dtype)
        return without_noise(keys, predicted, t)

    def fit(
        self,
        keys: Tensor,
        image: Tensor,
        text: Tensor,
        *,
        steps: int,
        batch_size: int,
        learning_rate: float,
        seed: int,
        things: Tensor | None = None,
        consistency_weight: float = 1.0,
    ) -> dict[str, float]:
        """Train from new weights on the CPU, but for a tenth of the keys, and measure on those.

        Weights of 1 are for norms as they are: consistency then pulls about D times less on an
        entry of e_hat than noise does, and a weight of D makes them rivals.

        Args:
            keys: [N, D], unit norm, of distinct requests.
            image: [N, C], unit norm, or zero where absent.
            text: [N, C], unit norm, or zero where absent.
            steps: Batches.
            batch_size: Keys a batch.
            learning_rate: Peak rate.
            seed: Of weights, batches, noise and what is held out.
            things: int64 [N]; keys of one thing, as a picture, are held out together. None: each
                is a thing of its own.
            consistency_weight: Of ||k - k~||_2.

        Returns:
            Mean |e - e_hat| per entry on held-out keys as ``noise_error``; beside it that with
            images and texts of other keys, ``shuffled_error``, and that of e_hat = 0,
            ``zero_error``; and ``consistency``, the mean ||k - k~||_2.

        Raises:
            ValueError: When the tensors do not fit each other or hold too few or broken keys.
        """
        _check(keys, image, text)
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.transformer = self._transformer().train()
        names = torch.arange(len(keys)) if things is None else things
        shuffled = names.unique()[torch.randperm(len(names.unique()), generator=generator)]
        is_held = torch.isin(names, shuffled[: max(2, len(shuffled) // 10)])
        held, kept = (is_held == wanted for wanted in (True, False))
        held, kept = held.nonzero().squeeze(1), kept.nonzero().squeeze(1)
        trained = [p for p in self.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=learning_rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=learning_rate, total_steps=steps + 1, pct_start=0.1
        )
        for step in range(steps):
            rows = kept[torch.randint(len(kept), (batch_size,), generator=generator)]
            losses = self.training_loss(keys[rows], image[rows], text[rows], generator)
            total = consistency_weight * losses["consistency"] + losses["noise"]
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            schedule.step()
            if step % max(1, steps // 4) == 0 or step == steps - 1:
                log.info(
                    "prior: step %d of %d, consistency %.3f, noise %.3f an entry",
                    *(step + 1, steps, losses["consistency"].item()),
                    losses["noise"].item() / self.key_dim,
                )
        self.eval()
        return self.measure(keys[held], image[held], text[held], generator)

    @torch.no_grad()
    def measure(
        self, keys: Tensor, image: Tensor, text: Tensor, generator: torch.Generator
    ) -> dict[str, float]:
        """Return the figures of ``fit`` on keys [N, D] with images and texts [N, C], N > 1."""
        sums = {"noise_error": 0.0, "shuffled_error": 0.0, "zero_error": 0.0, "consistency": 0.0}
        other_image, other_text = image.roll(1, 0), text.roll(1, 0)
        for _ in range(DRAWS):
            noise = _normal(keys, generator)
            t = torch.rand(len(keys), generator=generator).clamp(1e-4, 1 - 1e-4)
            noised = self.noised(keys, noise, t)
            predicted = self(noised, image, text, t)
            shuffled = self(noised, other_image, other_text, t)
            sums["noise_error"] += noise_error(noise, predicted).item() / self.key_dim
            sums["shuffled_error"] += noise_error(noise, shuffled).item() / self.key_dim
            sums["zero_error"] += noise.abs().mean().item()
            augmented = without_noise(keys, predicted, t)
            sums["consistency"] += retrieval_consistency(keys, augmented).item()
        return {name: total / DRAWS for name, total in sums.items()}

    def save(self, path: Path) -> None:
        """Write weights, hyperparameters and ``of`` as safetensors."""
        metadata = {METADATA: json.dumps(self.settings)} | ({OF: self.of} if self.of else {})
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        save_file(self.state_dict(), temporary, metadata=metadata)
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> DiffusionPrior:
        """Return the prior of a file; ValueError where it is missing, damaged or does not fit."""
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise ValueError(f"prior {path} cannot be read ({error})") from error
        if METADATA not in metadata:
            raise ValueError(f"{path} is not of a prior: its metadata has no {METADATA}")
        try:
            prior = cls(**json.loads(metadata[METADATA]))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"prior {path} has broken metadata ({error}); train it again"
            ) from error
        expected = {name: tensor.shape for name, tensor in prior.state_dict().items()}
        shapes = {name: tensor.shape for name, tensor in state.items()}
        if shapes != expected:
            names = {*shapes, *expected}
            differing = sorted(n for n in names if shapes.get(n) != expected.get(n))
            raise ValueError(
                f"weights of prior {path} do not fit {prior.settings}: {', '.join(differing)}"
            )
        damaged = [n for n, tensor in sorted(state.items()) if not torch.isfinite(tensor).all()]
        if damaged:
            raise ValueError(f"{damaged[0]} of prior {path} is not finite; train it again")
        prior.load_state_dict(state)
        prior.of = metadata.get(OF)
        return prior.eval()


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def _check(keys: Tensor, image: Tensor, text: Tensor) -> None:
    if len(keys) < FEWEST:
        raise ValueError(f"{len(keys)} keys to train a prior on: expected at least {FEWEST}")
    for name, rows in (("keys", keys), ("image", image), ("text", text)):
        if len(rows) != len(keys):
            raise ValueError(f"{name} has {len(rows)} rows beside {len(keys)} keys")
        if not torch.isfinite(rows).all():
            raise ValueError(f"{name} has rows that are not finite: encode them again")
