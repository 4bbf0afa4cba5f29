"""A trace of requests: a public trace's objects, each mapped to a group of equivalent requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from keynet.replay.neighbours import Ints
from keynet.replay.trace import TraceError, Visit


@dataclass(frozen=True)
class SemanticTrace:
    """Visits in order.

    Args:
        request: int64 [V], which request of the pool.
        object: int64 [V], the public trace's object, numbered as they came.
        time: float64 [V], seconds.
        size: int64 [V], bytes of the response.
        cost: float64 [V], of making the response.
        scope: str [V], what must match exactly.
        verbatim: bool [V], whether the request came before: its group had no unused one left.
    """

    request: Ints
    object: Ints
    time: NDArray[np.float64]
    size: Ints
    cost: NDArray[np.float64]
    scope: NDArray[np.str_]
    verbatim: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.request)

    def take(self, index: NDArray[Any]) -> Self:
        """Return the visits at ``index`` (integers or a mask)."""
        return replace(self, **{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def arriving(self, arrivals: Iterable[Visit]) -> Self:
        """Return the same visits at the times, sizes and costs of another trace, one by one.

        Raises:
            TraceError: There are fewer arrivals than visits.
        """
        found = list(islice(arrivals, len(self)))
        if len(found) < len(self):
            raise TraceError(
                f"{len(found)} arrivals for {len(self)} visits; ask for fewer visits, or give a "
                "longer trace"
            )
        return replace(
            self,
            time=np.array([visit.time for visit in found]),
            size=np.array([visit.size for visit in found], np.int64),
            cost=np.array([visit.cost for visit in found]),
        )


def map_to_requests(
    visits: Iterable[Visit],
    group: Ints,
    modalities: NDArray[np.str_],
    *,
    most: int,
    seed: int = 0,
    shares: Mapping[str, float] | None = None,
    shares_at_end: Mapping[str, float] | None = None,
) -> SemanticTrace:
    """Return a trace of requests with the popularity, order and times of another.

    Each object is mapped to one group when it is first visited. Groups are dealt like cards: only
    when each was dealt, one gets a second object. A visit takes another request of its group, in
    shuffled order; when all were taken, they come again in the same order.

    Args:
        visits: Of a public trace, with objects.
        group: int64 [N], of the requests; equal = equivalent.
        modalities: str [N], those present; a group that several have is several groups.
        most: Visits at most.
        seed: Of the mapping and of the order within a group.
        shares: Of the objects by modalities; None deals all groups alike.
        shares_at_end: The same for the last visit; between them the mix drifts evenly over
            ``most``.

    Raises:
        TraceError: There is no visit, one names no object, or shares name modalities that the
            requests do not have.
    """
    rng = np.random.default_rng(seed)
    decks = _decks(group, modalities, shares is None, rng)
    for name in {**(shares or {}), **(shares_at_end or {})}:
        if name not in decks:
            raise TraceError(f"no requests of {name!r}; there are {', '.join(sorted(decks))}")
    names = sorted(decks)
    start, end = (_shares(names, s) for s in (shares, shares_at_end or shares))
    numbers: dict[int | str, int] = {}
    dealt: list[list[int]] = []  # requests of each object's group
    taken: dict[int, int] = {}  # by the first request of a group, how many were taken
    rows: list[tuple[int, int, Visit, bool]] = []
    for at, visit in enumerate(islice(visits, most)):
        if visit.object is None:
            raise TraceError("the trace has arrivals alone and no objects; use it for arrivals")
        number = numbers.setdefault(visit.object, len(numbers))
        if number == len(dealt):
            share = start + (end - start) * (at / max(1, most - 1))
            name = names[int(np.searchsorted(np.cumsum(share), rng.random(), side="right"))]
            dealt.append(decks[name].deal())
        requests = dealt[number]
        before = taken.get(requests[0], 0)
        taken[requests[0]] = before + 1
        request = requests[before % len(requests)]
        rows.append((request, number, visit, before >= len(requests)))
    if not rows:
        raise TraceError("no visit is left of the trace; sample a larger share of its objects")
    return SemanticTrace(
        request=np.array([row[0] for row in rows], np.int64),
        object=np.array([row[1] for row in rows], np.int64),
        time=np.array([row[2].time for row in rows]),
        size=np.array([row[2].size for row in rows], np.int64),
        cost=np.array([row[2].cost for row in rows]),
        scope=np.array([row[2].scope for row in rows], np.str_),
        verbatim=np.array([row[3] for row in rows]),
    )


def footprint(trace: SemanticTrace, group: Ints) -> int:
    """Return how many distinct groups a trace asks for: what a perfect cache would have to hold."""
    scoped = np.char.add(group[trace.request].astype(str), np.char.add("|", trace.scope))
    return len(np.unique(scoped))


class _Deck:
    """Groups in shuffled order, dealt again when all were dealt."""

    def __init__(self, groups: list[list[int]], rng: np.random.Generator) -> None:
        self._groups = [groups[at] for at in rng.permutation(len(groups)).tolist()]
        self._next = 0

    def deal(self) -> list[int]:
        self._next += 1
        return self._groups[(self._next - 1) % len(self._groups)]


def _decks(
    group: Ints, modalities: NDArray[np.str_], together: bool, rng: np.random.Generator
) -> dict[str, _Deck]:
    members: dict[tuple[str, int], list[int]] = {}
    for request in rng.permutation(len(group)).tolist():
        members.setdefault((str(modalities[request]), int(group[request])), []).append(request)
    found: dict[str, list[list[int]]] = {}
    for (name, _), requests in sorted(members.items()):
        found.setdefault("" if together else name, []).append(requests)
    return {name: _Deck(groups, rng) for name, groups in found.items()}


def _shares(names: list[str], shares: Mapping[str, float] | None) -> NDArray[np.float64]:
    if shares is None:
        return np.ones(1)
    found = np.array([float(shares.get(name, 0.0)) for name in names])
    if not (found >= 0).all() or not found.sum() > 0:
        raise TraceError(f"shares are {dict(shares)}; expected numbers, 0 or more, not all 0")
    shared: NDArray[np.float64] = found / found.sum()
    return shared
