"""A test on audited hits that may be looked at after every one of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# Of the recent rate, an audit, and audits at the budget that it starts from: one that remembers two
# hundred audits notices a small change, one that remembers twenty soon notices a great one.
MEMORIES = ((0.995, 50), (0.95, 10))


class AuditAlarm:
    """An e-process against "at most ``budget`` of the served is wrong".

    Each audit is bet on: if it finds a false hit, a stake grows by rate / budget, else it shrinks
    by (1 - rate) / (1 - budget), the rate being that of recent audits where it is above the budget.
    While no more than ``budget`` of the hits is wrong, whatever came before, no bet is expected to
    gain. So the chance that the stakes *ever* grow from 1 to 1 / delta is at most delta, however
    often they are looked at. Little is bet in good times, which is why little has to be won back
    when they end. There are two stakes of a half, by a long memory and by a short one.

    Args:
        budget: False hits / served, in (0, 1).
        delta: Chance of a false alarm, in (0, 1).

    Raises:
        ValueError: One is no such share.

    Source: Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting
    (JRSS B 2024): the capital process of bets 1 + lambda (x - budget) with a predictable lambda,
    here Kelly's for the recent rate, (rate - budget) / (budget (1 - budget)), and Ville's
    inequality. That the rate forgets is ours.
    """

    def __init__(self, budget: float, delta: float = 0.05) -> None:
        for name, value in (("budget", budget), ("delta", delta)):
            if not 0 < value < 1:
                raise ValueError(f"{name} is {value!r}; give a share between 0 and 1")
        self._budget, self._delta = budget, delta
        self._most = max(0.5, (1 + budget) / 2)  # rate that is bet on: never all of the stake
        # By memory: false hits and audits that are remembered, logarithm of the stake.
        self._bets = [[0.0, 0.0, 0.0] for _ in MEMORIES]

    def add(self, equivalent: bool) -> bool:
        """Take an audited hit and return whether the alarm is raised."""
        budget = self._budget
        for bet, (memory, prior) in zip(self._bets, MEMORIES, strict=True):
            wrong, seen, log_stake = bet
            rate = min((wrong + prior * budget) / (seen + prior), self._most)
            if rate > budget:
                log_stake += math.log((1 - rate) / (1 - budget) if equivalent else rate / budget)
            bet[:] = memory * wrong + (not equivalent), memory * seen + 1, log_stake
        return self.log_evidence() >= -math.log(self._delta)

    def log_evidence(self) -> float:
        """Return the natural logarithm of the e-value: what a stake of 1 has grown to."""
        logs = [log_stake for _, _, log_stake in self._bets]
        most = max(logs)
        return most + math.log(sum(math.exp(log - most) for log in logs) / len(logs))

    def state(self) -> dict[str, Any]:
        """Return what was learned, as JSON can hold it."""
        return {"bets": [list(bet) for bet in self._bets]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self._bets = [list(bet) for bet in state["bets"]]
