"""Where the rows of a teacher come from: a store, the teacher itself, or the rows of its parts."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from distill.bridge import BridgeTeacher
from distill.store import encode_samples
from distill.teacher import Teacher
from keynet.types import Samples


class Targets(Protocol):
    """Rows of one teacher by sample number."""

    def rows(self, modality: str, ids: Tensor) -> Tensor:
        """Return float32 [N, Dk] for ``ids`` int64 [N]."""
        ...


class OnlineTargets:
    """The teacher, asked in every step; rounded as a store is, so that both train alike."""

    def __init__(self, teacher: Teacher, samples: Samples) -> None:
        self.teacher, self.samples = teacher, samples

    def rows(self, modality: str, ids: Tensor) -> Tensor:
        """Return float32 [N, Dk]."""
        found = encode_samples(self.teacher, self.samples, modality, ids.tolist())
        return found.to(torch.bfloat16).float()


class BridgeTargets:
    """A bridge over the rows of its two parts, which need no second store."""

    def __init__(self, teacher: BridgeTeacher, image: Targets, text: Targets) -> None:
        self.teacher, self.parts = teacher, {"image": image, "text": text}

    def rows(self, modality: str, ids: Tensor) -> Tensor:
        """Return float32 [N, Dk]."""
        return self.teacher.project(modality, self.parts[modality].rows(modality, ids))
