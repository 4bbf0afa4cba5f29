"""Training, calibration and test from a log, so that nothing leaks from one to another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np

from data.components import components
from data.requests import Split


def split_by_parts(
    parts: Sequence[Collection[Hashable]], shares: Mapping[Split, float], seed: int
) -> list[Split]:
    """Return the split of each request; requests that have a part in common share it.

    Args:
        parts: Of each request: its conversation, its pictures, ...
        shares: Wanted share of the requests in each split.
        seed: Decides between equals.

    Raises:
        ValueError: When there are fewer sets of requests to keep together than splits.
    """
    owner: dict[Hashable, int] = {}
    joined = [
        (owner.setdefault(part, number), number) for number, of in enumerate(parts) for part in of
    ]
    members: dict[int, list[int]] = defaultdict(list)
    for number, root in enumerate(components(len(parts), joined)):
        members[root].append(number)
    if len(members) < len(shares):
        raise ValueError(
            f"{len(parts):,} requests are {len(members)} sets that share conversations or pictures "
            f"and must stay together, {len(shares)} are needed for {', '.join(shares)}; give more "
            "of the log"
        )
    sets = list(members.values())
    shuffled = [sets[n] for n in np.random.default_rng(seed).permutation(len(sets))]
    # The largest first, each to the split that lacks most: few large ones spoil the shares least.
    missing = {name: share * len(parts) for name, share in shares.items()}
    empty = set(shares)
    split: list[Split] = [next(iter(shares))] * len(parts)
    ordered = sorted(shuffled, key=len, reverse=True)
    for number, together in enumerate(ordered):
        open_to = empty if len(ordered) - number <= len(empty) else missing.keys()
        name = max((n for n in shares if n in open_to), key=lambda n: missing[n])
        missing[name] -= len(together)
        empty.discard(name)
        for request in together:
            split[request] = name
    return split
