"""GreedyDual-Size-Frequency: what is used often, dear and small stays."""

from __future__ import annotations

from keynet.cache.policies.policy import Stored, check_capacity
from keynet.cache.policies.rising import RisingRanks


class GDSF:
    """The entry of the lowest priority goes: age + uses * cost / size, at its last use.

    The age is the priority of what went last, so what is no longer used falls behind. Of equal
    priorities, the one that was used longest ago goes.

    Args:
        capacity: Not used; the priorities alone decide.
        seed: Not used; nothing is drawn.

    Raises:
        PolicyError: The capacity is none.

    Source: Cherkasova, Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching
        Policy, HP Labs 1998: Pr(f) = Clock + Fr(f) * Cost(f) / Size(f). The same.
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        check_capacity(capacity)
        self._age = 0.0
        self._tick = 0
        self._worth: dict[int, float] = {}  # cost / size
        self._uses: dict[int, int] = {}
        self._ranks = RisingRanks()

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Count a use."""
        self._tick += 1
        self._uses[entry] += 1
        priority = self._age + self._uses[entry] * self._worth[entry]
        self._ranks.raise_to(entry, (priority, self._tick))

    def on_miss(self, incoming: Stored) -> None:
        """Learn nothing."""

    def on_insert(self, stored: Stored) -> None:
        """Count the first use."""
        self._tick += 1
        worth = self._worth[stored.entry] = stored.cost / stored.size
        self._uses[stored.entry] = 1
        self._ranks.add(stored.entry, (self._age + worth, self._tick))

    def on_remove(self, entry: int) -> None:
        """Forget it."""
        self._ranks.remove(entry)
        del self._worth[entry], self._uses[entry]

    def victim(self) -> int:
        """Return the one of the lowest priority."""
        if not self._ranks:
            raise LookupError("GDSF holds no entry")
        entry, (self._age, _) = self._ranks.pop()
        del self._worth[entry], self._uses[entry]
        return entry
