"""The root of the configuration: a typo at the root fails, typos below fail in constructors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore


@dataclass
class Config:
    """What ``train.py`` reads; the groups are Hydra's."""

    name: str
    seed: int
    key_dim: int
    bits: int
    steps: int
    steps_per_checkpoint: int
    batch_size: int
    image_size: int
    num_workers: int
    run_dir: str
    data: Any
    encoder: Any
    aligner: Any
    fusion: Any
    model: Any
    loss: Any
    module: Any
    trainer: Any
    evaluation: Any


def register() -> None:
    """Make the schema known to Hydra; called before composing."""
    ConfigStore.instance().store(name="schema", node=Config)
