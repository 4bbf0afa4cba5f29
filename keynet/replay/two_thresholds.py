"""A cache that asks two similarities of an entry: of the picture and of the text, each enough."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from keynet.cache.threshold import Counts
from keynet.replay.closed_loop import FALSE_HIT, HIT, MISS
from keynet.replay.neighbours import Floats, Ints, check_keys, similarities

MOST_REQUESTS = 20_000  # whose similarities to each other take 1.6 GB


@dataclass(frozen=True)
class PairedSimilarities:
    """How similar the pictures and the texts of N requests are, each pair of requests.

    Args:
        image: float32 [N, N].
        text: float32 [U, U], of distinct texts.
        text_of: int64 [N], number of each request's text.
    """

    image: Floats
    text: Floats
    text_of: Ints
    _near: dict[float, list[Ints]] = field(default_factory=dict, repr=False)

    @staticmethod
    def of(image: Floats, text: Floats) -> PairedSimilarities:
        """Return the similarities of unit rows [N, Di] and [N, Dt].

        Raises:
            ValueError: Rows are not of unit norm, or are so many that their pairs do not fit.
        """
        image, text = check_keys(image), check_keys(text)
        if len(image) != len(text) or len(image) > MOST_REQUESTS:
            raise ValueError(
                f"{len(image)} pictures and {len(text)} texts; give as many of both, "
                f"{MOST_REQUESTS} at most"
            )
        distinct, text_of = np.unique(text, axis=0, return_inverse=True)
        among = np.empty((len(image), len(image)), np.float32)
        for first in range(0, len(image), 512):
            among[first : first + 512] = similarities(image[first : first + 512], image)
        return PairedSimilarities(
            among, similarities(distinct, distinct), text_of.reshape(-1).astype(np.int64)
        )

    def near(self, b: float) -> list[Ints]:
        """Return by text the requests whose texts are at least ``b`` similar to it."""
        if b not in self._near:
            self._near[b] = [np.flatnonzero(row[self.text_of] >= b) for row in self.text]
        return self._near[b]


@dataclass(frozen=True)
class PairedReplay:
    """What became of each visit: see ``CacheReplay``."""

    outcome: NDArray[np.int8]
    served: Ints


def replay_two_thresholds(
    pairs: PairedSimilarities, group: Ints, order: Ints, a: float, b: float
) -> PairedReplay:
    """Visit requests with an empty cache; a miss stores its response.

    Of the entries whose picture is at least ``a`` and whose text at least ``b`` similar, the one of
    the greatest sum is served; of several, the earliest.

    Args:
        group: int64 [N], equal = equivalent.
        order: int64 [V], requests as visited.
    """
    served = _visit(pairs, order, a, b)
    right = group[order] == group[served]
    outcome = np.where(served < 0, MISS, np.where(right, HIT, FALSE_HIT)).astype(np.int8)
    return PairedReplay(outcome, served)


def count_two_thresholds(
    pairs: PairedSimilarities, group: Ints, question: Ints, order: Ints, a: float, b: float
) -> Counts:
    """Count what ``replay_two_thresholds`` would serve.

    Args:
        question: int64 [N], equal = the same question about the same thing.
    """
    served = _visit(pairs, order, a, b)
    hit = served >= 0
    at = order[hit]
    wrong = int((group[at] != group[served[hit]]).sum())
    return Counts(len(at), wrong, len(np.unique(question[at])))


def _visit(pairs: PairedSimilarities, order: Ints, a: float, b: float) -> Ints:
    near, text_of = pairs.near(b), pairs.text_of.tolist()
    best = np.full(len(text_of), -np.inf, np.float32)
    source = np.full(len(text_of), -1, np.int64)  # per request the entry that would be served
    served = np.empty(len(order), np.int64)
    for at, request in enumerate(order.tolist()):
        served[at] = source[request]
        if source[request] >= 0:
            continue
        text = text_of[request]
        others = near[text]
        picture = pairs.image[request, others]
        alike = picture >= a
        others = others[alike]
        total = picture[alike] + pairs.text[text, pairs.text_of[others]]
        nearer = total > best[others]
        others = others[nearer]
        best[others], source[others] = total[nearer], request
    return served
