"""What teachers cost a training step: read from a store, and asked online, on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import pytorch_lightning as pl
import torch
from torch import Tensor

from keynet.evaluation.records import Record, Sheet
from keynet.types import TrainingBatch

WARM_UP = 2  # steps that are not counted: kernels are compiled and pages first touched in them


class Rows(Protocol):
    """Rows of one teacher by sample number (``distill.targets.Targets``)."""

    def rows(self, modality: str, ids: Tensor) -> Tensor:
        """Return float32 [N, Dk] for ``ids`` int64 [N]."""
        ...


@dataclass(frozen=True)
class Sources:
    """Where rows come from, each with the modality that is asked of it.

    Args:
        stored: All that a training step reads, a part of two teachers twice.
        asked: Each network once a modality, which is the least that asking online costs.
        values: Numbers in the stores.
        bytes: Of the stores' files.
    """

    stored: Sequence[tuple[str, Rows]]
    asked: Sequence[tuple[str, Rows]]
    values: int
    bytes: int


class TeacherCost(pl.Callback):
    """Times, in a real training, the step and before it both ways to the batch's rows.

    A step is from the end of the last one to its own end, both ways left out: making the batch,
    forward with the store's rows read, backward, and the optimiser's step.

    Args:
        sources: Called when the training begins and stores are made.
        steps: Counted steps; give ``Trainer(max_steps=)`` ``WARM_UP`` more.
        say: Takes lines of progress.
    """

    def __init__(
        self, sources: Callable[[], Sources], steps: int, say: Callable[[str], None]
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps={steps}: give a positive number")
        self._open, self.steps, self._say = sources, steps, say
        self.read: list[float] = []
        self.asked: list[float] = []
        self.step: list[float] = []
        self._seen = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Open the rows."""
        self.sources = self._open()
        self._ended = self._began_all = perf_counter()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Time both ways to the rows."""
        self._fetched = perf_counter() - self._ended
        ids = sample_numbers(batch)
        # The store first: what asking warms in the caches must not help it.
        self._read = _seconds(self.sources.stored, ids)
        self._asked = _seconds(self.sources.asked, ids)
        self._began = perf_counter()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Time the step."""
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
        now = perf_counter()
        self._seen += 1
        step = self._fetched + now - self._began
        if self._seen > WARM_UP:
            self.step.append(step)
            self.read.append(self._read)
            self.asked.append(self._asked)
        total = self.steps + WARM_UP
        left = (total - self._seen) * (now - self._began_all) / self._seen
        self._say(
            f"step {self._seen} of {total}: {1000 * step:,.0f} ms, store {1000 * self._read:,.1f} "
            f"ms, teachers {1000 * self._asked:,.0f} ms, "
            f"about {left // 60:.0f} min {left % 60:02.0f} s left"
        )
        self._ended = perf_counter()


def sample_numbers(batch: TrainingBatch) -> dict[str, Tensor]:
    """Return the numbers of a batch's distinct pictures and texts, int64 [N] by modality."""
    numbers = {"image": batch.picture_id, "text": batch.text_id}
    return {modality: torch.unique(ids[ids >= 0]) for modality, ids in numbers.items()}


def cost_records(cost: TeacherCost, data: str, method: str, batches: int) -> list[Record]:
    """Return medians, the store's share of a step, what it saves an epoch, and its bytes a value.

    Args:
        cost: After the training.
        data: Name of the data set.
        method: Names of the teachers.
        batches: Batches an epoch.

    Raises:
        ValueError: When no step was counted.
    """
    if not cost.step:
        raise ValueError(f"the training ended before step {WARM_UP + 1}; give it more steps")
    n = len(cost.step)
    middle = {}
    records = []
    for name, seconds in (("step", cost.step), ("store", cost.read), ("asked", cost.asked)):
        middle[name] = median(seconds)
        sheet = Sheet(data, "train", name, method, None)
        p50, low, high = (1000 * s for s in (middle[name], min(seconds), max(seconds)))
        records.append(sheet.figure("latency_ms_p50", p50, low, high, n, unit="ms"))
    sheet, sources = Sheet(data, "train", "store", method, None), cost.sources
    saved = (middle["asked"] - middle["store"]) * batches
    size = sources.bytes / sources.values
    return [
        *records,
        sheet.figure("share_of_step", middle["store"] / middle["step"], n=n),
        sheet.figure("seconds_saved_per_epoch", saved, n=n, unit="s"),
        sheet.figure("bytes_per_value", size, n=sources.values, unit="bytes"),
    ]


def cost_table(records: Sequence[Record], batches: int, batch_size: int) -> str:
    """Return the figures as lines."""
    found = {(r.subset, r.metric): r.value or 0.0 for r in records}
    ms = {name: found[name, "latency_ms_p50"] for name in ("step", "store", "asked")}
    epoch = f"an epoch of {batches} batches of {batch_size}"
    lines = (
        ("a whole training step", f"{ms['step']:,.1f} ms"),
        ("  of it reading the store", f"{ms['store']:,.2f} ms"),
        ("  as a share of the step", f"{100 * found['store', 'share_of_step']:.2f} %"),
        ("asking the teachers instead", f"{ms['asked']:,.1f} ms"),
        (f"saved in {epoch}", f"{found['store', 'seconds_saved_per_epoch']:,.1f} s"),
        ("bytes a stored value", f"{found['store', 'bytes_per_value']:.3f}"),
    )
    width = max(len(what) for what, _ in lines)
    return "\n".join(f"{what:{width}}  {value:>12}" for what, value in lines)


def _seconds(sources: Sequence[tuple[str, Rows]], ids: dict[str, Tensor]) -> float:
    start = perf_counter()
    for modality, rows in sources:
        if len(ids[modality]):
            rows.rows(modality, ids[modality])
    return perf_counter() - start
