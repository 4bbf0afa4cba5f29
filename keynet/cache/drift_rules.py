"""Two rules that follow drift: the source's, which loosens under it, and one that tightens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from keynet.cache.acceptance import Acceptance, AcceptanceError, cosine, kept, resume
from keynet.cache.drift import Drift
from keynet.types import Key

HIGH, LOW = 0.85, 0.42  # of the source
SLOPE = 0.5


class DriftFollowing:
    """The source's rule: the more drift, the lower the threshold. For comparison, not for use.

    A drift makes keys less reliable, and this rule answers by serving more of them: false hits
    rise when they are rising anyway. Beside it: ``DriftTightening`` and ``Recalibrating``.

    Args:
        drift: Of keys from a reference.
        high: Threshold without drift.
        low: Least threshold.

    Raises:
        AcceptanceError: They are no cosines, or low is above high.

    Source: SPEC C4: high * (1 - tanh(0.5 KL)), kept within [0.42, 0.85].
    """

    def __init__(self, drift: Drift, high: float = HIGH, low: float = LOW) -> None:
        self._drift, self._high, self._low = drift, cosine("high", high), cosine("low", low)
        if low > high:
            raise AcceptanceError(f"low is {low}, above high, {high}; expected low <= high")

    def threshold(self, key: Key, modalities: str) -> float | None:
        """Return the source's threshold for the drift so far."""
        self._drift.require_own(key)
        value = self._high * (1 - math.tanh(SLOPE * self._drift.kl()))
        return min(max(value, self._low), self._high)

    def observe(self, key: Key, modalities: str) -> None:
        """Take the key into the window."""
        self._drift.observe(key)

    def audited(self, key: Key, modalities: str, similarity: float, equivalent: bool) -> None:
        """Learn nothing."""

    def state(self) -> dict[str, Any]:
        """Return the window."""
        return self._drift.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a window."""
        self._drift.restore(state)


class DriftTightening:
    """The source's rule turned round: what shrinks under drift is the distance to 1.

    1 - (1 - threshold) * (1 - tanh(0.5 KL)): without drift another rule's threshold, and under a
    great one only what is nearly equal is served.

    Args:
        rule: Gives the threshold without drift.
        drift: Of keys from a reference.
    """

    def __init__(self, rule: Acceptance, drift: Drift) -> None:
        self._rule, self._drift = rule, drift

    def threshold(self, key: Key, modalities: str) -> float | None:
        """Return the tightened threshold; None where the other rule serves nothing."""
        self._drift.require_own(key)
        value = self._rule.threshold(key, modalities)
        if value is None:
            return None
        return 1 - (1 - value) * (1 - math.tanh(SLOPE * self._drift.kl()))

    def observe(self, key: Key, modalities: str) -> None:
        """Take the key into the window."""
        self._drift.observe(key)
        self._rule.observe(key, modalities)

    def audited(self, key: Key, modalities: str, similarity: float, equivalent: bool) -> None:
        """Tell the other rule."""
        self._rule.audited(key, modalities, similarity, equivalent)

    def state(self) -> dict[str, Any]:
        """Return the window and the other rule's state."""
        return {"drift": self._drift.state(), "rule": kept(self._rule)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._drift.restore(state["drift"])
        resume(self._rule, state["rule"])
