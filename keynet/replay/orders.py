"""In which order requests come: popularity over groups, and verbatim repeats."""

from __future__ import annotations

import numpy as np

from keynet.replay.neighbours import Ints


def zipf_order(group: Ints, visits: int, exponent: float, seed: int, verbatim: float = 0.0) -> Ints:
    """Requests [visits] with popularity Zipf over groups, every visit a new request of its group.

    Groups get their rank by the seed and weight 1 / rank^exponent. A visit draws a group and takes
    one of its unused requests; a group that has none left is no longer drawn.

    Args:
        group: int64 [N].
        visits: Length of the order.
        exponent: 0 is uniform over groups.
        verbatim: Share of visits that repeat an earlier visit exactly, in [0, 1).

    Raises:
        ValueError: When the N requests do not suffice.
    """
    if not 0 <= verbatim < 1:
        raise ValueError(f"verbatim is {verbatim}; give a share in [0, 1)")
    rng = np.random.default_rng(seed)
    repeats = rng.random(visits) < verbatim
    repeats[:1] = False
    fresh = int((~repeats).sum())
    if fresh > len(group):
        raise ValueError(f"{fresh} new requests are to be drawn from {len(group)}; ask for fewer")
    drawn = iter(_fresh(group, fresh, exponent, rng))
    order = np.zeros(visits, dtype=np.int64)
    for at, repeat in enumerate(repeats.tolist()):
        order[at] = order[rng.integers(at)] if repeat else next(drawn)
    return order


def _fresh(group: Ints, count: int, exponent: float, rng: np.random.Generator) -> list[int]:
    shuffled = rng.permutation(len(group))
    names, member = np.unique(group[shuffled], return_inverse=True)
    unused: list[list[int]] = [[] for _ in names]
    for request, of in zip(shuffled.tolist(), member.tolist(), strict=True):
        unused[of].append(request)
    weight = (1.0 + rng.permutation(len(names))) ** -exponent
    drawn: list[int] = []
    while len(drawn) < count:
        # Draws of groups used up meanwhile are rejected, which leaves the others' odds as they are.
        cumulative = np.cumsum(weight)
        picks = np.searchsorted(
            cumulative, rng.random(count - len(drawn)) * cumulative[-1], side="right"
        )
        for pick in np.minimum(picks, len(names) - 1).tolist():
            if unused[pick]:
                drawn.append(unused[pick].pop())
                if not unused[pick]:
                    weight[pick] = 0.0
    return drawn
