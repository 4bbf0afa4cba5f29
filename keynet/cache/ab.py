"""Which of two key models makes the key of a request, for an A/B test in one cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from keynet.cache.entry import CacheError
from keynet.types import Request


def split_by(field: str, shares: Sequence[float], seed: int = 0) -> Callable[[Request], int]:
    """Return what assigns requests to models, for ``SemanticCache(assign=...)``.

    Requests of one value of the field have one model, always: choose the field by which entries
    could be shared (the tenant, the scene), since those of two key spaces never meet.

    Args:
        field: Of the request's scope.
        shares: Of each model, summing to 1.
        seed: Another seed is another split.

    Raises:
        CacheError: The shares are none. Later: a request's scope lacks the field.
    """
    if not shares or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise CacheError(f"shares are {list(shares)}; give one a model, which sum to 1")

    def assign(request: Request) -> int:
        if field not in request.scope:
            raise CacheError(f"scope lacks {field!r}, by which requests are split; give it")
        word = hashlib.sha256(f"{seed}\0{request.scope[field]!r}".encode()).digest()[:8]
        place, edge = int.from_bytes(word) / 2**64, 0.0
        for number, share in enumerate(shares):
            edge += share
            if place < edge:
                return number
        return max(number for number, share in enumerate(shares) if share)  # 0.999… of rounding

    return assign
