from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from keynet.training.interrupt import Interrupt


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def started() -> Any:
    found: Any = Interrupt()
    found.on_fit_start(None, None)
    return found


def test_an_interrupt_that_was_lost_stops_the_next_step() -> None:
    callback = started()
    callback.on_train_batch_start(None, None, None, 0)
    with pytest.raises(KeyboardInterrupt):  # as it is without; here nobody hears it
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        callback.on_train_batch_start(None, None, None, 1)


@pytest.mark.parametrize("end", ["on_exception", "on_fit_end"])
def test_the_handler_is_given_back(end: str) -> None:
    callback = started()
    assert signal.getsignal(signal.SIGINT) == callback._note
    getattr(callback, end)(None, None)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_interrupts_stay_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    callback = started()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    callback.on_train_batch_start(None, None, None, 0)
