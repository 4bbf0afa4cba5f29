"""A trace of requests through the semantic cache: misses store their true response."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from keynet.cache.acceptance import Acceptance
from keynet.cache.cache import SemanticCache
from keynet.cache.entry import Hit
from keynet.cache.key_maker import GivenKeys
from keynet.cache.policies.catalog import POLICIES
from keynet.cache.policies.heat_graph import HeatGraph
from keynet.cache.policies.policy import Policy, PolicyError
from keynet.cache.scope import scope_digest
from keynet.replay.closed_loop import FALSE_HIT, HIT, MISS, seen_before
from keynet.replay.neighbours import Floats, Ints, check_keys
from keynet.replay.semantic_trace import SemanticTrace
from keynet.types import Key, KeySpace

WIDE_BITS = 512  # of codes made of the signs of random projections
PROJECTION_SEED = 0


@dataclass(frozen=True)
class KeyedRequests:
    """The requests of a pool, each with its key.

    Args:
        space: Of the keys.
        vectors: float32 [N, D], unit rows.
        codes: uint8 [N, K/8].
        alignment: float32 [N], NaN where a modality is absent.
        group: int64 [N], equal = equivalent.
        modalities: str [N], those present.
    """

    space: KeySpace
    vectors: Floats
    codes: NDArray[np.uint8]
    alignment: Floats
    group: Ints
    modalities: NDArray[np.str_]

    @staticmethod
    def of_rows(
        name: str, vectors: Floats, group: Ints, modalities: NDArray[np.str_]
    ) -> KeyedRequests:
        """Return requests whose keys are the rows of a matrix that no key model made.

        Codes are the signs of random projections, so that near rows have near codes.
        """
        vectors = check_keys(vectors)
        dim = vectors.shape[1]
        planes = np.random.default_rng(PROJECTION_SEED).standard_normal((dim, WIDE_BITS))
        codes = np.packbits(vectors @ planes.astype(np.float32) >= 0, axis=1)
        space = KeySpace(name, 1, dim, WIDE_BITS, f"rows:{name}")
        return KeyedRequests(
            space, vectors, codes, np.full(len(vectors), np.nan, np.float32), group, modalities
        )

    def key(self, request: int, scope: str) -> Key:
        """Return the key of one request in a scope that ``trace_digest`` made."""
        alignment = float(self.alignment[request])
        return Key(
            self.space,
            self.vectors[request],
            self.codes[request],
            None if np.isnan(alignment) else alignment,
            scope,
        )


@dataclass(frozen=True)
class CacheReplay:
    """What became of each visit, in order.

    Args:
        outcome: int8 [V], 0 miss, 1 hit, 2 false hit.
        served: int64 [V], request whose response was served; -1 at a miss.
        similarity: float32 [V], to the nearest entry, served or not; NaN without one.
        oracle: bool [V], whether the group was visited before in its scope.
        seconds: float32 [V], of the lookup.
    """

    outcome: NDArray[np.int8]
    served: Ints
    similarity: Floats
    oracle: NDArray[np.bool_]
    seconds: Floats


def replay_cache(
    pool: KeyedRequests,
    trace: SemanticTrace,
    acceptance: Acceptance,
    *,
    policy: str = "lru",
    max_entries: int | None = None,
    ttl: float | None = None,
    seed: int = 0,
) -> CacheReplay:
    """Visit the requests of a trace with an empty cache.

    Args:
        pool: Whose requests the trace visits.
        trace: Its scopes never meet, nor do other modalities.
        acceptance: Rule for the similarity.
        policy: One of ``POLICIES``; not asked where any number of entries is held.
        max_entries: None is any number.
        ttl: Seconds of the trace until an entry expires; None is never.
        seed: Of the policy.

    Raises:
        PolicyError: The policy is not known.
    """
    now = 0.0
    visits = len(trace)
    outcome = np.zeros(visits, np.int8)
    served = np.full(visits, -1, np.int64)
    similarity = np.full(visits, np.nan, np.float32)
    seconds = np.zeros(visits, np.float32)
    modalities = pool.modalities.tolist()
    digests = {
        (scope, name): trace_digest(scope, name)
        for scope in set(trace.scope.tolist())
        for name in set(modalities)
    }
    columns = (
        trace.request.tolist(),
        trace.time.tolist(),
        trace.cost.tolist(),
        trace.scope.tolist(),
    )
    with SemanticCache(
        None, GivenKeys(pool.space), acceptance=acceptance, max_entries=max_entries, ttl=ttl,
        policy=_policy(policy, seed, lambda: now), clock=lambda: now,
    ) as cache:  # fmt: skip
        for at, (request, now, cost, scope) in enumerate(zip(*columns, strict=True)):  # noqa: B007 - the clock reads ``now``
            present = modalities[request]
            key = pool.key(request, digests[scope, present])
            begun = time.perf_counter()
            found = cache.lookup_key(key, present)
            seconds[at] = time.perf_counter() - begun
            if isinstance(found, Hit):
                served[at], similarity[at] = found.response, found.similarity
                right = pool.group[found.response] == pool.group[request]
                outcome[at] = HIT if right else FALSE_HIT
            else:
                outcome[at] = MISS
                similarity[at] = np.nan if found.nearest is None else found.nearest
                cache.insert(found, request, cost=cost)
    return CacheReplay(outcome, served, similarity, met_before(pool, trace), seconds)


def check_policies(names: Iterable[str]) -> list[str]:
    """Return names of policies.

    Raises:
        PolicyError: One is not known.
    """
    found = list(names)
    for name in found:
        if name not in POLICIES:
            raise PolicyError(f"no policy {name!r}; known are {', '.join(POLICIES)}")
    return found


def met_before(pool: KeyedRequests, trace: SemanticTrace) -> NDArray[np.bool_]:
    """Return whether each visit's group came before, in its scope and with its modalities."""
    asked = trace.request
    apart = np.stack([trace.scope.astype(np.str_), pool.modalities[asked]])
    where = np.unique(apart, axis=1, return_inverse=True)[1].astype(np.int64)
    return seen_before(pool.group[asked], where)


def trace_digest(scope: str, modalities: str) -> str:
    """Return the scope digest of a visit."""
    return scope_digest({"trace": scope}, "image" in modalities, "text" in modalities)


def _policy(name: str, seed: int, clock: Callable[[], float]) -> Callable[[int], Policy]:
    """Return what makes a policy of a capacity; its time is the trace's."""
    check_policies([name])
    if POLICIES[name] is HeatGraph:
        return partial(HeatGraph, seed=seed, clock=clock)
    return partial(POLICIES[name], seed=seed)
