"""The one LightningModule for key models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from keynet.types import TrainingBatch


class KeyModule(pl.LightningModule):
    """Trains a key model with a weighted sum of losses.

    Args:
        model: The key model.
        losses: By name, ``{"weight": float, "loss": module(output, batch) -> scalar}``.
        distillation: Losses against teachers, module(output, batch) -> scalars by name, with
            ``attach(samples, device, dtype)``; None trains without teachers.
        learning_rate: Peak rate of everything but the image encoder.
        image_learning_rate: Peak rate of the image encoder, which starts from trained weights.
        weight_decay: Of matrices; biases, norms and embeddings have none.
        warmup_share: Share of the steps in which the rates rise, before they fall as a cosine.
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
        learning_rate: float,
        image_learning_rate: float,
        weight_decay: float,
        warmup_share: float,
    ) -> None:
        super().__init__()
        if not losses:
            raise ValueError("no losses: give at least one under loss")
        self.model = model
        self.losses = nn.ModuleDict({name: entry["loss"] for name, entry in losses.items()})
        self.weights = {name: float(entry["weight"]) for name, entry in losses.items()}
        self.distillation = distillation or None  # `distill=none` is an empty configuration
        self.learning_rate = learning_rate
        self.image_learning_rate = image_learning_rate
        self.weight_decay = weight_decay
        self.warmup_share = warmup_share

    def setup(self, stage: str) -> None:
        """Hand the frozen image stem to the data, which may store its outputs; call teachers."""
        trainer: Any = self.trainer
        data = trainer.datamodule
        if data is None:  # batches come from a loader, and the caller has prepared them
            return
        adopt = getattr(self.model.text_encoder, "adopt_vocabulary", None)
        if adopt is not None:  # weights of a checkpoint come after it
            adopt(data.preprocessor.tokenizer_json)
        encoder = self.model.image_encoder
        if getattr(encoder, "frozen", None):
            stem = encoder.stem
            data.stem = lambda images: stem(images.to(self.device)).cpu()
        if self.distillation is not None:
            half = str(trainer.precision).startswith("bf16")
            dtype = torch.bfloat16 if half else torch.float32
            self.distillation.attach(data.samples, self.device, dtype)

    @property
    def teachers(self) -> list[Any]:
        """The teachers of the distillation."""
        return [] if self.distillation is None else self.distillation.teachers

    def training_step(self, batch: TrainingBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch.

        Raises:
            FloatingPointError: When it is not finite.
        """
        output = self.model(*batch[:6])
        total = torch.zeros((), device=batch.group.device)
        for name, loss in self.losses.items():
            value = loss(output, batch)
            self.log(f"loss/{name}", value)
            total = total + self.weights[name] * value
        if self.distillation is not None:
            for name, value in self.distillation(output, batch).items():
                self.log(f"loss/distill_{name}", value)
                total = total + value
        if not torch.isfinite(total):
            raise FloatingPointError(
                f"the loss is {total.item()} at step {self.global_step}; "
                "lower module.learning_rate or look at the data"
            )
        self.log("loss", total, prog_bar=True)
        return total

    def on_fit_end(self) -> None:
        """Keep beside the run what of its teachers was trained for it."""
        if self.distillation is not None:
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
            return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }
