"""Ctrl-C that is not lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

import pytorch_lightning as pl


class Interrupt(pl.Callback):
    """Stops a fit at its next step where an interrupt did not; a context manager around the fit.

    Python drops what is raised while a file is finalised, as when a checkpoint has been written.
    """

    def __enter__(self) -> Self:
        self.noted = False
        self._before: Any = signal.getsignal(signal.SIGINT)
        # Only the main thread may ask for signals; ignored ones stay so.
        main = threading.current_thread() is threading.main_thread()
        self._listens = main and callable(self._before)
        if self._listens:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._listens:
            signal.signal(signal.SIGINT, self._before)

    def on_train_batch_start(self, *_: Any) -> None:
        """Raise KeyboardInterrupt where one was noted and nothing has stopped."""
        if self.noted:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.noted = True
        self._before(number, frame)
