from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from keynet.training.interrupt import Interrupt


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted() -> None:
    """An interrupt that nobody hears, as where a file is finalised."""
    with pytest.raises(KeyboardInterrupt):  # as it is without
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_that_was_lost_stops_the_next_step() -> None:
    with Interrupt() as interrupt:
        interrupt.on_train_batch_start(None, None, None, 0)
        interrupted()
        with pytest.raises(KeyboardInterrupt):
            interrupt.on_train_batch_start(None, None, None, 1)
    assert interrupt.noted


def test_the_handler_is_given_back_whatever_others_leave() -> None:
    with pytest.raises(ZeroDivisionError), Interrupt():
        left = signal.getsignal(signal.SIGINT)
        assert left is not signal.default_int_handler
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, left)  # as a trainer does that found it
    interrupted()


def test_ignored_interrupts_stay_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupt() as interrupt:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        interrupt.on_train_batch_start(None, None, None, 0)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
