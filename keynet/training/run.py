"""A run directory: made or resumed, never mixed with another configuration's."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import torch
import yaml

from keynet.training.launch import launched

CONFIG = "config.yaml"
# What may differ between a run and its continuation: it changes no weight that is trained, but for
# the rounding of sums over processes.
FREE = (
    "run_dir", "evaluation", "export", "num_workers", "store", "features", "devices", "num_nodes",
    "logger",
)  # fmt: skip
NO_ID = "none"  # TORCHELASTIC_RUN_ID of a torchrun that was given none
# What torch.load raises for bytes that are no checkpoint of torch's, by what is wrong with them.
UNREADABLE = (
    RuntimeError, EOFError, OSError, TypeError, ValueError, AttributeError, LookupError,
    struct.error, pickle.UnpicklingError,
)  # fmt: skip
TRAINING_STATE = {"state_dict", "optimizer_states", "lr_schedulers", "loops", "global_step"}


class RunError(ValueError):
    """A run directory that cannot be used; the message says why and what to do."""


def open_run(folder: str | Path, config: dict[str, Any]) -> Path | None:
    """Make a run directory, or return the checkpoint from which it goes on.

    Of several processes the first one writes; no checkpoint comes before all have been here.

    Args:
        folder: The run directory.
        config: The resolved configuration of this run.

    Raises:
        RunError: When it cannot be written, holds a run of another configuration, or its
            checkpoint cannot be read; or when torchrun gave the run no name.
    """
    run = Path(folder)
    if run.name == NO_ID == os.environ.get("TORCHELASTIC_RUN_ID"):
        raise RunError(
            "torchrun gave this run no id to name its directory by; add --standalone or "
            "--rdzv-id=NAME to torchrun, or give run_dir"
        )
    stored, checkpoint = run / CONFIG, run / "checkpoints" / "last.ckpt"
    try:
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        if not checkpoint.exists():  # nothing was trained: this run's configuration holds
            if launched()[0]:
                return None
            temporary = stored.with_suffix(".tmp")
            temporary.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
            os.replace(temporary, stored)
            return None
    except OSError as error:
        raise RunError(
            f"run directory {run} cannot be written ({error.strerror}); give another: run_dir=..."
        ) from error
    try:
        before = yaml.safe_load(stored.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError):
        before = None
    if not isinstance(before, dict):
        raise RunError(f"{stored} is damaged; give another run_dir")
    changed = first_difference(_without_free(before), _without_free(config))
    if changed:
        raise RunError(
            f"run directory {run} belongs to another configuration: {changed}; "
            "give the same options to go on, or another run_dir"
        )
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True)
        readable = content.keys() >= TRAINING_STATE
    except UNREADABLE:
        readable = False
    if not readable:
        raise RunError(
            f"{checkpoint} is damaged or no checkpoint of this program; "
            "remove it to train from the start, or give another run_dir"
        )
    return checkpoint


def epochs(steps: int, steps_per_checkpoint: int) -> int:
    """Return how many epochs, each ending in a checkpoint, make ``steps``."""
    if steps < 1 or steps_per_checkpoint < 1 or steps % steps_per_checkpoint:
        raise RunError(
            f"steps={steps} is not a positive multiple of "
            f"steps_per_checkpoint={steps_per_checkpoint}; give one that is"
        )
    return steps // steps_per_checkpoint


def point_latest(run: str | Path) -> None:
    """Let ``latest`` beside the run directory point to it, in one step."""
    folder = Path(run).resolve()  # given as `latest`, it would point to itself
    temporary = folder.parent / f".latest-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    os.replace(temporary, folder.parent / "latest")


def first_difference(before: Any, now: Any, place: str = "") -> str | None:
    """Return which option differs between two configurations, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(k for k in now if k not in before)]:
            found = first_difference(before.get(key), now.get(key), f"{place}.{key}".lstrip("."))
            if found:
                return found
        return None
    return None if before == now else f"{place} was {before!r} and is {now!r}"


def _without_free(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    return {key: _without_free(value) for key, value in config.items() if key not in FREE}
