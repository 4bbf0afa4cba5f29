"""What test_ranks.py compares: made by one process there, and by two under torchrun here."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from hydra.utils import instantiate
from omegaconf import OmegaConf
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from aligners.augment import AugmentedContrast, GaussianKeys
from aligners.concatenation import Concatenation
from data.datamodule import RequestDataModule
from distill.distillation import Distillation
from distill.objectives import Affinity, Feature, TextContrast
from distill.teacher import TeacherOutput
from distill.weighting import KeepWorst
from keynet.models.modality_hash_head import ModalityHashHead
from keynet.training.encode import encode
from keynet.training.fit import fit
from keynet.training.launch import launched
from keynet.training.module import KeyModule
from keynet.training.ranks import gathered, own_random, ranks
from keynet.types import Request, TrainingBatch

HERE = Path(__file__).parent
CONF = HERE.parents[2] / "conf"
tiny_module = run_path(str(HERE / "conftest.py"))["tiny_module"]
ToySource = run_path(str(HERE.parents[1] / "conftest.py"))["ToySource"]
OBJECTIVES = {
    "affinity": Affinity(student_temperature=0.07, temperature=2.0),
    "feature": Feature(),
    "text_contrast": TextContrast(temperature=0.07),
}
OF_SIGNS = ("code_contrast", "code_affinity", "response", "hash_cosine")
BATCH = 24
EPOCHS, HALF = 4, 2


class MeanText(nn.Module):
    """Mean of the tokens' vectors, in fp32: the text tower trains in bf16, which rounds at 4e-3."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = 8
        self.embedding = nn.Embedding(300, 8)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        weight = mask.unsqueeze(-1).float()
        return (self.embedding(tokens) * weight).sum(1) / weight.sum(1).clamp(min=1)


class Table:
    """A teacher of both modalities: a vector for each content."""

    modalities = ("image", "text")
    dim, temperature = 12, 0.1

    def __init__(self, name: str) -> None:
        self.name = self.fingerprint = name

    def to(self, device: Any, dtype: torch.dtype) -> None:
        pass

    def encode(self, requests: list[Request]) -> TeacherOutput:
        return TeacherOutput(
            image=torch.stack([self._row(request.image) for request in requests]),
            text=torch.stack([self._row(request.text) for request in requests]),
        )

    def _row(self, content: Any) -> Tensor:
        seed = sum(n * b for n, b in enumerate(f"{self.name}{content}".encode()))
        return torch.randn(self.dim, generator=torch.Generator().manual_seed(seed))


def all_losses() -> dict[str, dict[str, Any]]:
    """Every loss of the configuration, with its weight."""
    found: dict[str, Any] = {}
    for path in sorted((CONF / "loss").glob("*.yaml")):
        found |= {n: o for n, o in OmegaConf.load(path).items() if n != "defaults"}
    return {name: instantiate(OmegaConf.create(options)) for name, options in found.items()}


def make_module(head: str = "shared", **changes: Any) -> KeyModule:
    torch.manual_seed(0)
    teachers = {name: Table(name) for name in ("one", "two")}
    settings: dict[str, Any] = {
        "losses": all_losses(),
        "distillation": Distillation(
            teachers=teachers, weighting=KeepWorst(), standardise="running", store=None, seed=0,
            objectives={n: {"weight": 1.0, "objective": o} for n, o in OBJECTIVES.items()},
            key_dim=8,
        ),
        "augment": {
            "keys": GaussianKeys(strength=0.3), "weight": 1.0,
            "loss": AugmentedContrast(temperature=0.07),
        },
        "gradnorm": 0.3,
    }  # fmt: skip
    module: KeyModule = tiny_module(**(settings | changes))
    torch.manual_seed(1)
    module.model.text_encoder = MeanText()
    if head == "by_modality":
        module.model.fusion = Concatenation(key_dim=16)
        module.model._aligned_dim = None
        module.model.hash_head = ModalityHashHead(key_dim=16, bits=64)
    return module


class Data(RequestDataModule):
    """Batches of the toy source in which some texts are captions."""

    def __init__(self) -> None:
        super().__init__(
            source=ToySource(), image_size=16, max_tokens=32, long_text="error", vocab_size=300,
            batch_size=BATCH, batches_per_epoch=2, seed=0, num_workers=0, store_stems=False,
        )  # fmt: skip
        batches = self.batches
        batches.described = (batches.picture_id >= 0) & (batches.intent == 0)

    def shared_batch(self) -> TrainingBatch:
        self.trainer = SimpleNamespace(global_rank=ranks()[0], world_size=ranks()[1])
        batch: TrainingBatch = next(iter(self.train_dataloader()))
        return batch


def gradient(module: nn.Module) -> Tensor:
    """Of all parameters, as it is on this rank; cleared."""
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in module.parameters()]
    module.zero_grad()
    return torch.cat([grad.flatten() for grad in grads])


def averaged(module: nn.Module) -> Tensor:
    """The gradient of all parameters, mean over ranks."""
    flat = gradient(module)
    if ranks()[1] > 1:
        dist.all_reduce(flat)
    return flat / ranks()[1]


def gradients(
    head: str = "shared", *, chunk: int | None = None, norm: bool = True
) -> dict[str, Tensor]:
    """The gradient of every loss by name, and what else a step moves."""
    data, module = Data(), make_module(head)
    if not norm:  # of an encoder; that of the hash head stays
        module.model.image_encoder.norm = nn.Identity()
    distillation = module.distillation
    distillation.attach(data.samples, "cpu", torch.float32)
    batch, found = data.shared_batch(), {}
    for name in module.losses:
        module.loss_values(encode(module.model, batch, chunk), batch)[name].backward()
        found[name] = averaged(module)
    for name in OBJECTIVES:
        distillation.batches.zero_()
        distillation(encode(module.model, batch, chunk), batch)[name].backward()
        found[f"distill_{name}"] = averaged(module)
    torch.manual_seed(5)
    module._augmented(encode(module.model, batch, chunk), batch).backward()
    found["augment"] = averaged(module)
    module.log = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    module.chunk = chunk
    module.forward = lambda given: module.training_step(given, 0)  # type: ignore[method-assign]
    step: nn.Module = module
    if ranks()[1] > 1:
        step = DistributedDataParallel(module, find_unused_parameters=True)
    for _ in range(2):  # GradNorm's weights count from the second
        step(batch).backward()
        found["all"] = gradient(module)
    buffers = [b.float().flatten() for n, b in module.named_buffers() if "num_batches" not in n]
    return found | {"buffers": torch.cat([b[b.isfinite()] for b in buffers])}


class Curve(pl.Callback):
    """The loss of each step, and the end of one rank where it is asked for."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.losses: list[float] = []
        self.kill_at = kill_at

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.kill_at and trainer.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, *_: Any) -> None:
        self.losses.append(float(outputs["loss"]))


def train(
    folder: Path, epochs: int, checkpoint: Path | None = None, kill_at: int | None = None
) -> list[float]:
    """Train as ``train.py`` does, under torchrun with ``trainer=ddp``; the loss of each step."""
    _, world = launched()
    options = OmegaConf.load(CONF / "trainer" / ("ddp.yaml" if world > 1 else "cpu.yaml"))
    assert options.devices == world
    curve = Curve(kill_at)
    trainer: pl.Trainer = instantiate(
        options,
        accelerator="cpu",
        max_epochs=epochs, default_root_dir=folder, logger=False, enable_progress_bar=False,
        callbacks=[ModelCheckpoint(folder / "checkpoints", "{epoch}", save_top_k=-1), curve],
    )  # fmt: skip
    # A bit that turns over is a jump, and noise on keys starts anew where a training goes on. Of
    # equal flat pictures consistency is rounding around zero, below which GradNorm leaves it out.
    left_out = (*OF_SIGNS, "consistency")
    losses = {name: loss for name, loss in all_losses().items() if name not in left_out}
    losses["crossed_contrast"]["loss"].code_weight = 0
    fit(trainer, make_module(losses=losses, augment=None), Data(), checkpoint, folder)
    return curve.losses


def main(folder: Path, job: str) -> None:
    """Under torchrun: ``two_ranks.py FOLDER compare|kill``."""
    if job == "kill":
        train(folder, EPOCHS, kill_at=2 * HALF)
        return
    found: dict[str, Any] = {"curve": train(folder / "two", EPOCHS)}  # joins the processes
    found["resumed"] = train(
        folder / "resumed", EPOCHS, folder / "one" / "checkpoints" / f"epoch={HALF - 1}.ckpt"
    )
    for head in ("shared", "by_modality"):
        found[head] = gradients(head)
    found["chunk"] = gradients(chunk=5, norm=False)
    found["chunk of all"] = gradients(chunk=1000)  # a rank's share at once, and its forward twice
    torch.manual_seed(3)
    for step in range(2):
        with own_random(step, torch.device("cpu")):
            found[f"own draws {step}"] = gathered(torch.rand(1))
        found[f"common draws {step}"] = gathered(torch.rand(1))
    if ranks()[0] == 0:
        torch.save(found, folder / "two.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
