"""A fit, by one process or several, that tells how to go on where it ends early."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch.distributed import DistError

from keynet.export.trained_on import Numbers
from keynet.training.interrupt import Interrupt
from keynet.training.launch import launched
from keynet.training.ranks import leave
from keynet.training.run import RunError
from keynet.training.trained_on import TrainedOn

GLOO = "gloo"  # whose errors are bare RuntimeErrors that name its source files


def fit(
    trainer: pl.Trainer,
    module: pl.LightningModule,
    data: pl.LightningDataModule,
    checkpoint: Path | None,
    run: Path,
) -> Numbers | None:
    """Fit, or go on fitting; end the process with one line when it is stopped.

    Returns the numbers [N] of what the model is trained on, None where that is not known.

    Args:
        trainer: Of as many processes as torchrun has started.
        module: What is trained.
        data: Its batches.
        checkpoint: From ``open_run``.
        run: The run directory.

    Raises:
        RunError: When the trainer is of another number of processes, or the data has changed.
    """
    _, started = launched()
    if trainer.world_size != started:
        raise RunError(
            f"the trainer trains in {trainer.world_size} processes and {started} were started; "
            "for several: torchrun --standalone --nproc-per-node=N train.py trainer=ddp ..."
        )
    atexit.register(leave)
    # Deterministic mode fills memory that is then overwritten: a tenth of a step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    trained_on, interrupt = TrainedOn(), Interrupt()
    trainer.callbacks += [interrupt, trained_on]  # type: ignore[attr-defined]  # set in its init
    try:
        with interrupt:
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
        if interrupt.noted:
            raise KeyboardInterrupt
    except (KeyboardInterrupt, SystemExit):  # Lightning ends the process on an interrupt
        told = f"stopped; the same command with run_dir={run} goes on"
        sys.exit(told if trainer.is_global_zero else 1)
    except RuntimeError as error:
        if started == 1 or not (isinstance(error, DistError) or GLOO in str(error)):
            raise
        # Every process that is left: the first may be the one that is not.
        sys.exit(
            f"error: rank {trainer.global_rank} of {started} lost another one, whose own error "
            f"stands above if it had one; the same command with run_dir={run} goes on from the "
            "last checkpoint, also with another number of processes"
        )
    return trained_on.found
