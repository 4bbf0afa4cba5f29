"""Ctrl-C that is not lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import pytorch_lightning as pl


class Interrupt(pl.Callback):
    """Stops a fit at its next step where an interrupt did not.

    Python drops what is raised while a file is finalised, as when a checkpoint has been written.
    """

    _before: Any = None  # the handler that the fit found

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note interrupts, which only the main thread may ask for."""
        self._noted, handler = False, signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(handler):
            self._before = handler
            signal.signal(signal.SIGINT, self._note)

    def on_train_batch_start(self, *_: Any) -> None:
        """Raise KeyboardInterrupt where one was noted and nothing has stopped."""
        if self._noted:
            raise KeyboardInterrupt

    def on_exception(self, *_: Any) -> None:
        """Give the handler back."""
        self._restore()

    def on_fit_end(self, *_: Any) -> None:
        """Give the handler back."""
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True
        self._before(number, frame)

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
