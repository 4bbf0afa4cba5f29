"""Lines of a log that cannot be used: each counted by its reason, none forgotten."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

SHOWN = 5  # line numbers in a message


class BrokenError(ValueError):
    """Why a line cannot be used.

    Args:
        reason: One of a few, by which lines are counted.
        detail: What it was in this line.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason, self.detail = reason, detail


@dataclass
class BrokenLines:
    """The numbers, from 1, of broken lines by reason, and what the first of each reason was."""

    lines: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    first: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.lines.values()))

    def add(self, number: int, error: BrokenError) -> None:
        """Count one line."""
        self.lines[error.reason].append(number)
        self.first.setdefault(error.reason, error.detail)

    def by_reason(self) -> Mapping[str, list[int]]:
        """Return all line numbers by reason, the commonest reason first."""
        return dict(sorted(self.lines.items(), key=lambda found: (-len(found[1]), found[0])))

    def summary(self) -> str:
        """Return the counts by reason, each with its first line numbers."""
        return "; ".join(
            f"{len(numbers):,} {reason}{f', {self.first[reason]}' if self.first[reason] else ''} "
            f"({shown_lines(numbers)})"
            for reason, numbers in self.by_reason().items()
        )


def shown_lines(numbers: list[int]) -> str:
    """Return the first line numbers: ``lines 3, 8, …``."""
    shown = ", ".join(map(str, numbers[:SHOWN]))
    return f"line{'s' * (len(numbers) > 1)} {shown}{', …' * (len(numbers) > SHOWN)}"
