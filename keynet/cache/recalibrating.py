"""A rule that tightens another's thresholds when audits show too many false hits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from keynet.cache.acceptance import Acceptance, kept, resume
from keynet.cache.audit import AuditAlarm
from keynet.cache.threshold import fit_fixed_store
from keynet.types import Key

RECENT = 512  # audits from which a threshold is taken; 299 without an error show 1 %


class Recalibrating:
    """Another rule's threshold, or after an alarm what the audits say, whichever is stricter.

    Each key space and pattern of modalities has an alarm of its own. When it is raised, the
    threshold becomes the loosest one at which the last 512 audits keep the budget by the binomial
    test of ``fit_fixed_store``; where there is none, as when too few were audited, it becomes what
    is just above the most similar false hit among them. Then the alarm starts anew. So it goes on
    serving, and tightens until the alarm is silent; the next threshold is as good as the audits
    behind it, and is guaranteed nothing. It never loosens: audits tell nothing of what is no longer
    served. After thresholds were calibrated anew, ``reset``.

    Args:
        rule: Gives the thresholds until an alarm.
        budget: False hits / served, in (0, 1).
        delta: Chance of a false alarm, in (0, 1).
    """

    def __init__(self, rule: Acceptance, budget: float, delta: float = 0.05) -> None:
        AuditAlarm(budget, delta)  # refuses what is no share now rather than at the first audit
        self._rule, self._budget, self._delta = rule, budget, delta
        self._ledgers: dict[str, _Ledger] = {}

    def threshold(self, key: Key, modalities: str) -> float | None:
        """Return the stricter one; None where nothing may be served."""
        base = self._rule.threshold(key, modalities)
        ledger = self._ledgers.get(_name(key, modalities))
        if base is None or ledger is None or ledger.floor is None:
            return base
        floor = max(base, ledger.floor)
        return floor if floor <= 1 else None  # a false hit of the very same vector

    def observe(self, key: Key, modalities: str) -> None:
        """Tell the other rule."""
        self._rule.observe(key, modalities)

    def audited(self, key: Key, modalities: str, similarity: float, equivalent: bool) -> None:
        """Count the audit, and tighten when the alarm is raised."""
        self._rule.audited(key, modalities, similarity, equivalent)
        ledger = self._ledgers.setdefault(
            _name(key, modalities), _Ledger(self._budget, self._delta)
        )
        ledger.add(similarity, equivalent)

    def alarms(self) -> dict[str, int]:
        """Return how many alarms there were, by key space and modalities."""
        return {name: ledger.alarms for name, ledger in self._ledgers.items()}

    def reset(self) -> None:
        """Forget all audits: the other rule's thresholds hold again."""
        self._ledgers.clear()

    def state(self) -> dict[str, Any]:
        """Return the audits, alarms and what they led to."""
        ledgers = {name: ledger.state() for name, ledger in self._ledgers.items()}
        return {"rule": kept(self._rule), "ledgers": ledgers}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        resume(self._rule, state["rule"])
        self._ledgers = {}
        for name, known in state["ledgers"].items():
            self._ledgers[name] = _Ledger(self._budget, self._delta)
            self._ledgers[name].restore(known)


class _Ledger:
    """The audits of one key space and pattern of modalities, and the threshold they led to."""

    def __init__(self, budget: float, delta: float) -> None:
        self._budget, self._delta = budget, delta
        self._alarm = AuditAlarm(budget, delta)
        self._recent: deque[tuple[float, bool]] = deque(maxlen=RECENT)
        self.floor: float | None = None
        self.alarms = 0

    def add(self, similarity: float, equivalent: bool) -> None:
        self._recent.append((similarity, equivalent))
        if self._alarm.add(equivalent):
            self.floor = self._stricter()
            self.alarms += 1
            self._alarm = AuditAlarm(self._budget, self._delta)
            self._recent.clear()

    def _stricter(self) -> float:
        similarity, equivalent = zip(*self._recent, strict=True)
        fitted = fit_fixed_store(similarity, equivalent, self._budget, self._delta).value
        if fitted is not None:
            return fitted
        wrong = max(s for s, right in self._recent if not right)
        return math.nextafter(wrong, math.inf)

    def state(self) -> dict[str, Any]:
        return {
            "alarm": self._alarm.state(),
            "recent": [list(one) for one in self._recent],
            "floor": self.floor,
            "alarms": self.alarms,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._alarm.restore(state["alarm"])
        self._recent.extend((similarity, right) for similarity, right in state["recent"])
        self.floor, self.alarms = state["floor"], state["alarms"]


def _name(key: Key, modalities: str) -> str:
    return f"{key.space.fingerprint} {modalities}"
