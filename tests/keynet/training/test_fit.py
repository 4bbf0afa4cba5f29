from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from keynet.training.fit import fit
from keynet.training.interrupt import Interrupt
from keynet.training.run import RunError
from keynet.training.trained_on import TrainedOn


def trainer(error: BaseException | None = None, *, rank: int = 0, world: int = 1) -> Any:
    def fitted(*_: Any, **__: Any) -> None:
        if error is not None:
            raise error

    return SimpleNamespace(
        fit=fitted, callbacks=[], world_size=world, global_rank=rank, is_global_zero=rank == 0
    )


def call(of: Any) -> None:
    nothing: Any = None
    fit(of, nothing, nothing, None, Path("outputs/run"))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_a_fit_that_ends_says_nothing_and_heard_interrupts() -> None:
    fitted = trainer()
    call(fitted)
    assert [type(callback) for callback in fitted.callbacks] == [Interrupt, TrainedOn]


def test_an_interrupt_that_was_lost_in_the_last_step_ends_the_process() -> None:
    def fitted(*_: Any, **__: Any) -> None:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)

    of, before = trainer(), signal.signal(signal.SIGINT, signal.default_int_handler)
    of.fit = fitted
    try:
        with pytest.raises(SystemExit, match="stopped; the same command with run_dir=outputs/run"):
            call(of)
    finally:
        signal.signal(signal.SIGINT, before)


def test_torchrun_with_a_trainer_of_one_process_is_refused(two: None) -> None:
    with pytest.raises(RunError, match=r"trains in 1 processes and 2 were started; .*trainer=ddp"):
        call(trainer())


def test_a_trainer_of_several_processes_without_torchrun_is_refused() -> None:
    with pytest.raises(RunError, match=r"trains in 2 processes and 1 were started; .*torchrun"):
        call(trainer(world=2))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_fit_tells_once_how_to_go_on(two: None, rank: int) -> None:
    with pytest.raises(SystemExit) as end:
        call(trainer(KeyboardInterrupt(), rank=rank, world=2))
    told = "stopped; the same command with run_dir=outputs/run goes on"
    assert end.value.code == (1 if rank else told)


@pytest.mark.parametrize(
    "error", [dist.DistBackendError("NCCL"), RuntimeError("[gloo/pair.cc] Connection closed")]
)
def test_a_lost_process_is_told_by_whoever_is_left(two: None, error: RuntimeError) -> None:
    with pytest.raises(SystemExit, match=r"^error: rank 1 of 2 lost another one.*run_dir=outputs"):
        call(trainer(error, rank=1, world=2))


@pytest.mark.parametrize("world", [1, 2])
def test_an_error_of_its_own_stays(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(world))
    with pytest.raises(RuntimeError, match="shapes"):
        call(trainer(RuntimeError("shapes"), world=world))
