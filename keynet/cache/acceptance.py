"""Which similarity is enough to serve an entry, and how that changes by what is seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from keynet.types import Key


class Acceptance(Protocol):
    """Says from which similarity on an entry may be served; called under the cache's lock."""

    def threshold(self, key: Key, modalities: str) -> float | None:
        """Return the least similarity at which a request may be served; None serves nothing.

        Args:
            key: Of the request.
            modalities: ``image+text``, ``image`` or ``text``.
        """
        ...

    def observe(self, key: Key, modalities: str) -> None:
        """See the key of a lookup; rules that follow drift learn from it."""
        ...

    def report(self, key: Key, modalities: str, similarity: float, equivalent: bool) -> None:
        """Learn that a hit of this similarity was audited, and whether it was a correct one."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return what was learned, as JSON, for ``restore``."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        ...
