"""The vectors of a scope's entries, in rows without gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from keynet.cache.policies.policy import PolicyError, Stored

FIRST_ROWS = 16


class Rows:
    """Columns with a row an entry; the last row fills the gap of one that goes.

    Args:
        columns: Width and type of each, by name.
    """

    def __init__(self, **columns: tuple[int, Any]) -> None:
        self._columns = {
            name: np.empty((FIRST_ROWS, width), kind) for name, (width, kind) in columns.items()
        }
        self._room = FIRST_ROWS
        self._place: dict[int, int] = {}
        self.entries: list[int] = []  # by row

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return the rows of a column [N, width], as they are now."""
        return self._columns[name][: len(self.entries)]

    def row(self, name: str, entry: int) -> NDArray[Any]:
        """Return the row of an entry [width]."""
        found: NDArray[Any] = self._columns[name][self._place[entry]]
        return found

    def add(self, entry: int, **row: Any) -> None:
        """Append a row; each column takes its part by name."""
        at = len(self.entries)
        if at == self._room:
            self._room *= 2
            for name, old in self._columns.items():
                grown = np.empty((self._room, old.shape[1]), old.dtype)
                grown[:at] = old
                self._columns[name] = grown
        for name, part in row.items():
            self._columns[name][at] = part
        self._place[entry] = at
        self.entries.append(entry)

    def remove(self, entry: int) -> None:
        """Remove the row of an entry."""
        at, last = self._place.pop(entry), self.entries.pop()
        if last != entry:
            end = len(self.entries)
            for column in self._columns.values():
                column[at] = column[end]
            self.entries[at], self._place[last] = last, at


def vector_of(stored: Stored, policy: str) -> NDArray[np.float32]:
    """Return the vector of an entry [D].

    Raises:
        PolicyError: It has none.
    """
    if stored.vector is None:
        raise PolicyError(
            f"entry {stored.entry} has no vector, and {policy} goes by similarity; "
            "for a plain key trace choose another policy"
        )
    return stored.vector
