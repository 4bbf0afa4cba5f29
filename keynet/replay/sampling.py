"""A trace made smaller that keeps its popularity and locality."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from keynet.replay.trace import TraceError, Visit


def sampled(visits: Iterable[Visit], share: float, seed: int = 0) -> Iterator[Visit]:
    """Yield all visits to some of the objects.

    Args:
        share: Of the objects, in (0, 1].
        seed: Which ones.

    Raises:
        TraceError: The share is none, or a visit names no object.

    Source: Waldspurger et al., SHARDS (FAST 2015), section 3: an object is kept by its hash, so
    that the sampled trace's reuse distances are those of the trace times ``share``.
    """
    if not 0 < share <= 1:
        raise TraceError(f"sample is {share}; expected a share of the objects, more than 0 up to 1")
    most = int(share * 2**64)
    salt = seed.to_bytes(8, "big")
    for visit in visits:
        if visit.object is None:
            raise TraceError("the trace has arrivals alone and no objects; use it for arrivals")
        digest = hashlib.blake2b(repr(visit.object).encode(), digest_size=8, salt=salt).digest()
        if int.from_bytes(digest, "big") < most:
            yield visit
