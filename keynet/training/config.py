"""The root of the configuration: a typo at the root fails, typos below fail in constructors."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, InstantiationException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from keynet.training.launch import launched

# What a user can mend: values, files, packages, options. All else keeps its traceback.
MENDABLE = (
    ValueError, OSError, ModuleNotFoundError, FloatingPointError, HydraException,
    OmegaConfBaseException,
)  # fmt: skip


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
    num_workers: int
    run_dir: str
    data: Any
    encoder: Any
    adapter: Any
    aligner: Any
    fusion: Any
    hash_head: Any
    model: Any
    loss: Any
    augment: Any
    export: Any
    distill: Any
    module: Any
    trainer: Any
    logger: Any
    evaluation: Any


def register() -> None:
    """Make the schema known to Hydra; called before composing."""
    ConfigStore.instance().store(name="schema", node=Config)


def known_options(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a training.

    Raises:
        ValueError: When it has what no training reads, such as a typo added by ``+``.
    """
    known = [field.name for field in fields(Config)]
    unknown = [name for name in config if name not in known]
    if unknown:
        raise ValueError(f"no option {unknown[0]!r}; known are {', '.join(known)}")
    return config


def explained(main: Callable[[], None]) -> None:
    """Call a Hydra ``main``; end with one line when stopped, or where the user can mend an error.

    With ``HYDRA_FULL_ERROR=1`` in the environment the traceback is shown.
    """
    traceback_wanted = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, instead of printing a traceback itself
    logging.getLogger("faiss").setLevel(logging.WARNING)  # which tells each library it tries
    try:
        main()
    except KeyboardInterrupt:
        if traceback_wanted:
            raise
        sys.exit("stopped")
    except MENDABLE as error:
        if traceback_wanted:
            raise
        cause = error.__cause__ if isinstance(error, InstantiationException) else None
        rank, _ = launched()
        of = f" of rank {rank}" if rank else ""
        said = " ".join(str(cause or error).split())
        if isinstance(error, MissingMandatoryValue):
            said = f"{error.full_key} is not given; give {error.full_key}=..."
        # Hydra's hint at an option that does not exist would add one that nothing reads.
        sys.exit(f"error{of}: " + said.split(" To append to your config use")[0])
