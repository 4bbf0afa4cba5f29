"""The one LightningModule for key models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aligners.gradnorm import GradNorm
from keynet.training.average import TailAverage
from keynet.training.crossed import CrossedContrast
from keynet.training.encode import encode
from keynet.training.losses import across_scopes
from keynet.training.parts import train_only
from keynet.training.ranks import own_random
from keynet.training.start import StartError, start_from
from keynet.training.stems import encoder_stems
from keynet.types import KeyOutput, TrainingBatch

ADAPTER = "image_adapter"
PRIOR = "prior.safetensors"


class KeyModule(pl.LightningModule):
    """Trains a key model with a weighted sum of losses.

    Args:
        model: The key model.
        losses: By name, ``{"weight": float, "loss": module(output, batch) -> scalar}``; a
            ``CrossedContrast`` is given the model, too.
        distillation: Losses against teachers, module(output, batch) -> scalars by name, with
            ``attach(samples, device, dtype)``; None trains without teachers.
        augment: ``{"keys": module(key, image, text) -> key, "loss": module(key, augmented, logits,
            augmented logits, group) -> scalar, "weight": float}``; None trains on keys as they are.
        start_from: Run directory whose key model this one starts from; None starts afresh.
        trained: The only parts of the key model that are trained, such as ``image_adapter``; None
            trains all.
        gradnorm: Asymmetry alpha of GradNorm, which weighs the weighted losses by their gradients
            at what is trained of the aligner; None keeps the weights given.
        chunk: Pictures, texts or requests at once, for batches beyond memory (see ``encode``);
            None takes all at once.
        learning_rate: Peak rate of everything but the image encoder.
        image_learning_rate: Peak rate of the image encoder, which starts from trained weights.
        weight_decay: Of matrices; biases, norms and embeddings have none.
        warmup_share: Share of the steps in which the rates rise, before they fall as a cosine.
        final_rate: Where the cosine ends, as a share of the peak rates; None is at zero.
        average: Share of the steps, the last ones, over which the key model's weights are averaged
            (see ``TailAverage``); None takes those of the last step.
    """

    model: Any
    distillation: Any
    weights: dict[str, float]

    def __init__(
        self,
        *,
        model: nn.Module,
        losses: Mapping[str, Mapping[str, Any]],
        distillation: nn.Module | None = None,
        augment: Mapping[str, Any] | None = None,
        start_from: str | None = None,
        trained: Sequence[str] | None = None,
        gradnorm: float | None = None,
        chunk: int | None = None,
        learning_rate: float,
        image_learning_rate: float,
        weight_decay: float,
        warmup_share: float,
        final_rate: float | None = None,
        average: float | None = None,
    ) -> None:
        super().__init__()
        if not losses:
            raise ValueError("no losses: give at least one under loss")
        self.model = model
        self.losses = nn.ModuleDict({name: entry["loss"] for name, entry in losses.items()})
        crosses = any(isinstance(loss, CrossedContrast) for loss in self.losses.values())
        if crosses and getattr(getattr(model, "fusion", None), "reads_tokens", False):
            raise ValueError(
                "crossed_contrast asks questions of pictures from their vectors alone, and "
                "fusion=qformer reads their tokens; take fusion=residual_mlp or "
                "loss=contrast_and_hash"
            )
        self.weights = {name: float(entry["weight"]) for name, entry in losses.items()}
        self.distillation = distillation or None  # `distill=none` is an empty configuration
        # `augment=none` is an empty configuration.
        self.augmentation: Any = augment["keys"] if augment else None
        self.augment_loss: Any = augment["loss"] if augment else None
        self.augment_weight = float(augment["weight"]) if augment else 0.0
        self.start_from = start_from
        self.started = ""  # digest of the weights that are started from
        self.trained = None if trained is None else train_only(model, trained)
        if gradnorm is not None and not self._shared():
            raise ValueError(
                f"module.gradnorm={gradnorm} compares gradients at what is trained of the aligner, "
                "and nothing is; add a part of it to module.trained, such as "
                "aligner.projections.text, or give module.gradnorm=null"
            )
        self.gradnorm = None if gradnorm is None else GradNorm(names=list(losses), alpha=gradnorm)
        if chunk is not None and (type(chunk) is not int or chunk < 2):
            raise ValueError(f"module.chunk={chunk!r}: expected at least 2 rows, or null")
        self.chunk = chunk
        self.learning_rate = learning_rate
        self.image_learning_rate = image_learning_rate
        self.weight_decay = weight_decay
        self.warmup_share = warmup_share
        for name, share in (("final_rate", final_rate), ("average", average)):
            if share is not None and (type(share) not in (int, float) or not 0 < share <= 1):
                raise ValueError(
                    f"module.{name}={share!r}: expected a share, above 0 up to 1, or null"
                )
        self.final_rate = final_rate or 0.0
        self.tail_average = None if average is None else TailAverage(average)
        self.train()

    def configure_callbacks(self) -> list[pl.Callback]:
        """Return what averages the weights, for Lightning."""
        return [] if self.tail_average is None else [self.tail_average]

    def setup(self, stage: str) -> None:
        """Hand the frozen stems to the data, which may store their outputs; call teachers."""
        trainer: Any = self.trainer
        data = trainer.datamodule
        if self.trained is not None and self.start_from is None:
            raise StartError(
                f"module.trained={self.trained} trains parts of a finished model: give the run it "
                "is in, module.start_from=RUN, or module.trained=null"
            )
        if data is None:  # batches come from a loader, and the caller has prepared them
            return
        adopt = getattr(self.model.text_encoder, "adopt_vocabulary", None)
        if adopt is not None:  # weights of a checkpoint come after it
            adopt(data.preprocessor.tokenizer_json)
        if self.start_from is not None:
            tokenizer, present = data.preprocessor.tokenizer_json, trainer.default_root_dir
            self.started = start_from(self.model, self.start_from, tokenizer, ADAPTER, present)
        data.stems = encoder_stems(self.model, self.device)
        if self.distillation is not None:
            half = str(trainer.precision).startswith("bf16")
            dtype = torch.bfloat16 if half else torch.float32
            self.distillation.attach(data.samples, self.device, dtype)

    def train(self, mode: bool = True) -> KeyModule:
        """Set training mode; what is not trained keeps its statistics and is without dropout."""
        super().train(mode)
        if mode and self.trained is not None:
            self.model.eval()
            for part in self.trained:
                self.model.get_submodule(part).train()
        return self

    @property
    def teachers(self) -> list[Any]:
        """The teachers of the distillation."""
        return [] if self.distillation is None else self.distillation.teachers

    def on_fit_start(self) -> None:
        """Fit the prior that augments keys, or take the one that the run has."""
        if self.augmentation is not None and self.augmentation.lacks_prior:
            from keynet.training.prior import fitted_prior  # needs diffusers

            trainer: Any = self.trainer
            data, path = trainer.datamodule, Path(trainer.default_root_dir) / PRIOR
            if self.start_from is None:
                raise StartError(
                    "a prior is fitted to the keys of a trained model: give "
                    "module.start_from=RUN, or augment.keys.prior=RUN/prior.safetensors"
                )
            settings = self.augmentation.fit
            resumed = trainer.ckpt_path is not None
            prior = fitted_prior(
                self.model,
                data.batches,
                path,
                settings,
                data.seed,
                of=self.started,
                resumed=resumed,
            )
            self.augmentation.adopt(prior)

    def training_step(self, batch: TrainingBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch.

        Raises:
            FloatingPointError: When it is not finite.
        """
        with own_random(self.global_step, self.device):
            output = encode(self.model, batch, self.chunk)
        values = self.loss_values(output, batch)
        for name, value in values.items():
            self.log(f"loss/{name}", value)
        weighted = {name: self.weights[name] * value for name, value in values.items()}
        if self.gradnorm is not None:
            factors = self.gradnorm(weighted, self._shared())
            for name, factor in zip(self.gradnorm.names, factors, strict=True):
                weighted[name] = factor * weighted[name]
        total = torch.stack(list(weighted.values())).sum()
        if self.distillation is not None:
            for name, value in self.distillation(output, batch).items():
                self.log(f"loss/distill_{name}", value)
                total = total + value
        if self.augmentation is not None:
            value = self._augmented(output, batch)
            self.log("loss/augment", value)
            total = total + self.augment_weight * value
        if not torch.isfinite(total):
            raise FloatingPointError(
                f"the loss is {total.item()} at step {self.global_step}; "
                "lower module.learning_rate or look at the data"
            )
        self.log("loss", total, prog_bar=True)
        return total

    def loss_values(self, output: KeyOutput, batch: TrainingBatch) -> dict[str, Tensor]:
        """Return each loss of a batch, before its weight."""
        return {
            name: loss(output, batch, self.model)
            if isinstance(loss, CrossedContrast)
            else loss(output, batch)
            for name, loss in self.losses.items()
        }

    def _shared(self) -> list[nn.Parameter]:
        return [p for p in self.model.aligner.parameters() if p.requires_grad]

    def _augmented(self, output: KeyOutput, batch: TrainingBatch) -> Tensor:
        key = self.augmentation(output.key, output.image, output.text)
        # As in evaluation: the statistics of codes are those of keys as they are.
        logits = F.linear(key, *self.model.taught_matrix())
        loss: Tensor = self.augment_loss(
            output.key, key, output.logits, logits, batch.group, across_scopes(batch)
        )
        return loss

    def on_fit_end(self) -> None:
        """Keep beside the run what of its teachers was trained for it."""
        if self.distillation is not None and self.trainer.is_global_zero:
            self.distillation.keep(self.trainer.default_root_dir)

    def configure_optimizers(self) -> Any:
        """Return AdamW with a warm-up and a cosine over all steps."""
        image = {id(p) for p in self.model.image_encoder.parameters()}
        matrices = {
            id(module.weight)
            for module in self.modules()
            if isinstance(module, nn.Linear | nn.Conv2d)
        }
        groups = []
        for is_image, rate in ((True, self.image_learning_rate), (False, self.learning_rate)):
            for decayed, decay in ((True, self.weight_decay), (False, 0.0)):
                chosen = [
                    p
                    for p in self.parameters()
                    if p.requires_grad
                    and (id(p) in image) == is_image
                    and (id(p) in matrices) == decayed
                ]
                if chosen:
                    groups.append({"params": chosen, "lr": rate, "weight_decay": decay})
        optimizer = torch.optim.AdamW(groups)
        steps = int(self.trainer.estimated_stepping_batches)
        warmup = max(1, round(self.warmup_share * steps))

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            share = 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
            return self.final_rate + (1 - self.final_rate) * share

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }
