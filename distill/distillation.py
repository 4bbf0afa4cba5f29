"""All of distillation as one module: teachers in, a weighted loss a batch out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from distill.bridge import BridgeTeacher
from distill.objectives import Lesson, Objective, Student
from distill.projector import Projector
from distill.standardise import PhiStandardiser, RunningStandardiser
from distill.store import Store, samples_digest, store_folder, torchrun_rank, write_store
from distill.targets import BridgeTargets, OnlineTargets, Targets
from distill.teacher import Teacher, TeacherError
from distill.weighting import Weighting, angular_dispersion, held_out_precision, scores_of
from keynet.types import KeyOutput, Samples, TrainingBatch

STANDARDISERS = {"running": RunningStandardiser, "phi_s": PhiStandardiser}
SAMPLE = 4096  # rows that standardisers and dispersions are estimated from
DESCRIBED = "described"
log = logging.getLogger(__name__)


class Distillation(nn.Module):
    """Losses of a student against its teachers.

    Projectors and estimates are part of it and of checkpoints; teachers are not.

    Args:
        teachers: By name.
        objectives: By name, ``{"weight": float, "objective": distill.objectives.Objective}``.
        weighting: How much each teacher counts.
        standardise: ``running`` or ``phi_s``.
        key_dim: Width D of the student's vectors.
        store: Folder of stored embeddings, made there when missing; None asks the teachers in
            every step.
        seed: For weightings that draw.
    """

    dispersion: Tensor
    precision: Tensor
    batches: Tensor

    def __init__(
        self,
        *,
        teachers: Mapping[str, Teacher],
        objectives: Mapping[str, Mapping[str, Any]],
        weighting: Weighting,
        standardise: str,
        key_dim: int,
        store: str | Path | None,
        seed: int,
    ) -> None:
        super().__init__()
        if not teachers or not objectives:
            raise TeacherError("distillation without teachers or objectives: choose distill=none")
        if standardise not in STANDARDISERS:
            raise TeacherError(
                f"distill.standardise={standardise!r}: expected one of {', '.join(STANDARDISERS)}"
            )
        for name, teacher in teachers.items():
            if name != teacher.name:
                raise TeacherError(f"teacher {name} calls itself {teacher.name}: name it alike")
        self.teachers = list(teachers.values())
        self.objectives: dict[str, tuple[float, Objective]] = {
            name: (float(entry["weight"]), entry["objective"]) for name, entry in objectives.items()
        }
        self.weighting, self.store, self.seed = weighting, store, seed
        self.projectors, self.standardisers = nn.ModuleDict(), nn.ModuleDict()
        for teacher in self.teachers:
            outputs = [*teacher.modalities, *([DESCRIBED] if "text" in teacher.modalities else [])]
            self.projectors[teacher.name] = nn.ModuleDict(
                {output: Projector(in_dim=key_dim, out_dim=teacher.dim) for output in outputs}
            )
            self.standardisers[teacher.name] = nn.ModuleDict(
                {m: STANDARDISERS[standardise](dim=teacher.dim) for m in teacher.modalities}
            )
        self.register_buffer("dispersion", torch.ones(len(self.teachers)))
        self.register_buffer("precision", torch.full((len(self.teachers),), float("nan")))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self._targets: dict[str, Targets] = {}

    def attach(self, samples: Samples, device: torch.device | str, dtype: torch.dtype) -> None:
        """Make or open the stored embeddings and measure the teachers on them.

        Args:
            samples: What training sees.
            device: Of teachers that are asked, and of the embeddings.
            dtype: Of their weights.
        """
        # What is drawn here depends on what is stored: a training must not depend on that.
        with torch.random.fork_rng(devices=[]):
            data = samples_digest(samples)
            opened: dict[str, Targets] = {}
            for teacher in self.teachers:
                targets = self._open(teacher, samples, data, opened, device, dtype)
                self._targets[teacher.name] = targets
                self._measure(teacher, samples)
            if self.weighting.needs_precision:
                requests = samples.held_out()
                measured = {t.name: held_out_precision(t, requests) for t in self.teachers}
                self.precision.copy_(scores_of(measured))
                log.info("held-out mean average precision: %s", measured)

    def _open(
        self,
        teacher: Teacher,
        samples: Samples,
        data: str,
        opened: dict[str, Targets],
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> Targets:
        if isinstance(teacher, BridgeTeacher):
            image = self._open(teacher.image, samples, data, opened, device, dtype)
            text = self._open(teacher.text, samples, data, opened, device, dtype)
            if not teacher.trained:
                self._train(teacher, image, text, samples, data)
            return BridgeTargets(teacher, image, text)
        if teacher.fingerprint not in opened:
            teacher.to(device, dtype)
            if self.store is None:
                opened[teacher.fingerprint] = OnlineTargets(teacher, samples)
            else:
                folder = store_folder(self.store, teacher, data)
                rank, world = torchrun_rank()
                write_store(folder, teacher, samples, data, rank=rank, world=world)
                if world > 1:
                    torch.distributed.barrier()
                opened[teacher.fingerprint] = Store(folder, teacher, samples, data)
        return opened[teacher.fingerprint]

    def _train(
        self, bridge: BridgeTeacher, image: Targets, text: Targets, samples: Samples, data: str
    ) -> None:
        """Train the head of a bridge, or take the one that the store keeps of the same data."""
        kept = None
        if self.store is not None:
            kept = Path(self.store) / f"{bridge.name}-{bridge.recipe()}-{data}.safetensors"
            if kept.exists():
                bridge.load(kept)
                return
        used = [column.unique(return_inverse=True) for column in samples.pairs.T]
        (pictures, picture_of), (texts, text_of) = used
        pairs = torch.stack([picture_of, text_of], 1)
        bridge.fit(image.rows("image", pictures), text.rows("text", texts), pairs)
        if kept is not None:
            bridge.save(kept)

    def _measure(self, teacher: Teacher, samples: Samples) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        spreads = []
        for modality in teacher.modalities:
            count = len(samples.pictures if modality == "image" else samples.texts)
            chosen = torch.randperm(count, generator=generator)[:SAMPLE].sort()[0]
            if not len(chosen):
                continue
            rows = self._targets[teacher.name].rows(modality, chosen)
            fit: Any = self.standardisers[teacher.name][modality].fit
            fit(rows)
            spreads.append(angular_dispersion(rows))
        self.dispersion[self.teachers.index(teacher)] = sum(spreads) / max(1, len(spreads))

    def keep(self, folder: str | Path) -> None:
        """Write the heads that were trained here to ``folder``, as NAME.safetensors."""
        for teacher in self.teachers:
            if isinstance(teacher, BridgeTeacher):
                teacher.save(Path(folder) / f"{teacher.name}.safetensors")

    def forward(self, output: KeyOutput, batch: TrainingBatch) -> dict[str, Tensor]:
        """Return the weighted loss of each objective, by name."""
        student, ids = _student(output, batch)
        lessons = [self._lesson(teacher, student, ids) for teacher in self.teachers]
        weights = self._weights(student, lessons)
        losses = {}
        for name, (weight, objective) in self.objectives.items():
            able = [n for n, lesson in enumerate(lessons) if objective.applies(lesson)]
            # A weighting may have dropped all that can teach this: then it teaches nothing now.
            share = weights[able]
            if len(able) and not share.sum() > 0:
                continue
            share = share / share.sum().clamp(min=1e-12)
            losses[name] = weight * objective(student, [lessons[n] for n in able], share)
        self.batches += 1
        return losses

    def _weights(self, student: Student, lessons: list[Lesson]) -> Tensor:
        device = student.image.device
        own = torch.zeros(len(lessons))
        if self.weighting.needs_losses:
            own = self._own_losses(student, lessons).cpu()
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + int(self.batches))
        weights = self.weighting(own, self.dispersion.cpu(), self.precision.cpu(), generator)
        return weights.to(device)

    @torch.no_grad()
    def _own_losses(self, student: Student, lessons: list[Lesson]) -> Tensor:
        """Return each teacher's own loss [T], the sum over objectives."""
        own = torch.zeros(len(lessons), device=student.image.device)
        one = torch.ones(1, device=student.image.device)
        for weight, objective in self.objectives.values():
            for n, lesson in enumerate(lessons):
                if objective.applies(lesson):
                    own[n] += weight * objective(student, [lesson], one)
        return own

    def _lesson(self, teacher: Teacher, student: Student, ids: dict[str, Tensor]) -> Lesson:
        projectors: Any = self.projectors[teacher.name]
        rows, standard, predicted = {}, {}, {}
        for modality in teacher.modalities:
            found = self._targets[teacher.name].rows(modality, ids[modality])
            rows[modality] = found.to(student.image.device)
            standard[modality] = self.standardisers[teacher.name][modality](rows[modality])
            predicted[modality] = projectors[modality](getattr(student, modality))
        described = projectors[DESCRIBED](student.image) if DESCRIBED in projectors else None
        return Lesson(
            teacher.name,
            teacher.temperature,
            rows.get("image"),
            rows.get("text"),
            standard,
            predicted,
            described,
        )


def _student(output: KeyOutput, batch: TrainingBatch) -> tuple[Student, dict[str, Tensor]]:
    """Return the distinct pictures and texts of a batch, each once, and their sample numbers."""
    ids, vectors, place = {}, {}, {}
    for modality, numbers in (("image", batch.picture_id), ("text", batch.text_id)):
        present = (numbers >= 0).nonzero().squeeze(1)
        distinct, inverse = numbers[present].unique(return_inverse=True)
        first = torch.full((len(distinct),), len(numbers), device=numbers.device)
        first.scatter_reduce_(0, inverse, present, "amin")
        ids[modality] = distinct
        vectors[modality] = getattr(output, modality)[first]
        place[modality] = torch.full_like(numbers, -1)
        place[modality][present] = inverse
    pairs = torch.zeros(
        len(ids["image"]), len(ids["text"]), dtype=torch.bool, device=batch.picture_id.device
    )
    rows = batch.described.nonzero().squeeze(1)
    pairs[place["image"][rows], place["text"][rows]] = True
    return Student(vectors["image"], vectors["text"], pairs), ids
