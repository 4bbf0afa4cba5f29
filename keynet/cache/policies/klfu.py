"""KLFU: frequency and recency, weighed against each other."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from keynet.cache.policies.policy import PolicyError, Stored, check_capacity, check_share


class KLFU:
    """The entry of the lowest score goes: freq * (1 - tail_bias) + recency * tail_bias.

    ``freq`` is the share of the entries that were used less often; ``recency`` falls from 1, used
    just now, to 0, used longest ago of all. Of equal scores, the entry that was used longest ago
    goes.

    Args:
        capacity: Not used; the scores alone decide.
        seed: Not used; nothing is drawn.
        tail_bias: Weight of recency; or ``rank``, which takes an entry's own: the share of entries
            that were used at least as often. So the most used are kept by their uses, and the tail
            by recency.

    Raises:
        PolicyError: The capacity or the bias is none.

    Source: SPEC C1, which gives the score and a bias "0.6 and by rank" alone; both scales are ours
        (with uses over the most of any as ``freq``, popular entries leave nothing for the others,
        and what goes is LRU's). Of entries of equal uses only the oldest is compared: exact, in the
        time of how many numbers of uses there are.
    """

    def __init__(
        self, capacity: int, seed: int = 0, *, tail_bias: float | Literal["rank"] = 0.6
    ) -> None:
        check_capacity(capacity)
        self._bias: float | None = None
        if isinstance(tail_bias, str):
            if tail_bias != "rank":
                raise PolicyError(f'tail_bias is {tail_bias!r}; expected 0 to 1, or "rank"')
        else:
            self._bias = check_share("tail_bias", tail_bias)
        self._tick = 0
        self._uses: dict[int, int] = {}
        self._used: dict[int, OrderedDict[int, int]] = {}  # last use by number of uses and entry

    def on_hit(self, entry: int, similarity: float = 1.0) -> None:
        """Count a use."""
        uses = self._uses[entry]
        self._leave(entry, uses)
        self._enter(entry, uses + 1)

    def on_miss(self, incoming: Stored) -> None:
        """Learn nothing."""

    def on_insert(self, stored: Stored) -> None:
        """Count the first use."""
        self._enter(stored.entry, 1)

    def on_remove(self, entry: int) -> None:
        """Forget it."""
        self._leave(entry, self._uses.pop(entry))

    def victim(self) -> int:
        """Return the one of the lowest score."""
        if not self._uses:
            raise LookupError("KLFU holds no entry")
        oldest = [(uses, *next(iter(used.items()))) for uses, used in self._used.items()]
        first = min(last for _, _, last in oldest)
        span = max(1, self._tick - first)
        rank = self._ranks()
        bias = rank if self._bias is None else dict.fromkeys(rank, self._bias)
        _, _, entry = min(
            ((1 - rank[uses]) * (1 - bias[uses]) + (last - first) / span * bias[uses], last, entry)
            for uses, entry, last in oldest
        )
        self.on_remove(entry)
        return entry

    def _ranks(self) -> dict[int, float]:
        """Return, by number of uses, the share of entries that were used at least as often."""
        shares, above = {}, 0
        for uses in sorted(self._used, reverse=True):
            above += len(self._used[uses])
            shares[uses] = above / len(self._uses)
        return shares

    def _enter(self, entry: int, uses: int) -> None:
        self._tick += 1
        self._uses[entry] = uses
        self._used.setdefault(uses, OrderedDict())[entry] = self._tick

    def _leave(self, entry: int, uses: int) -> None:
        used = self._used[uses]
        del used[entry]
        if not used:
            del self._used[uses]
