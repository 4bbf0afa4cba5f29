"""Time that never goes back, however the clock that tells it is set."""

from __future__ import annotations

from collections.abc import Callable


class SteadyClock:
    """Seconds that go on from where they were when the clock is set back.

    So what expired stays so, and what did not expires after as many seconds as it was given. A jump
    ahead cannot be told from time that passed, and counts as such. One thread calls it at a time.

    Args:
        clock: Seconds since the epoch.
        reached: The time that was reached before, by another clock.
    """

    def __init__(self, clock: Callable[[], float], reached: float = 0.0) -> None:
        self._clock = clock
        self._told = clock()
        self._ahead = max(0.0, reached - self._told)
        self.reached = max(reached, self._told)

    def __call__(self) -> float:
        """Return the time, which is never less than before."""
        told = self._clock()
        self._ahead += max(0.0, self._told - told)
        self._told = told
        self.reached = max(self.reached, told + self._ahead)  # against rounding
        return self.reached
