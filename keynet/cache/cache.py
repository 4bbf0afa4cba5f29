"""The semantic cache: a request is served the stored response of an equivalent one."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from keynet.cache.acceptance import Acceptance, kept, resume
from keynet.cache.entries import Entries
from keynet.cache.entry import CacheError, Entry, Hit, Miss
from keynet.cache.eviction import Eviction
from keynet.cache.index_disk import explained
from keynet.cache.key_maker import KeyMaker
from keynet.cache.key_rows import entry_number, key_rows
from keynet.cache.policies.lru import LRU
from keynet.cache.policies.policy import Policy
from keynet.cache.responses import encoded
from keynet.cache.spots import Spot, Spots
from keynet.cache.stats import Stats
from keynet.cache.steady_clock import SteadyClock
from keynet.cache.store import CacheFilesError, Row
from keynet.cache.versions import Stamp, Versions, check_grain, named_grains, versioned_digest
from keynet.types import Key, Request

__all__ = ["CacheError", "CacheFilesError", "Entry", "Hit", "Miss", "SemanticCache", "Stats"]

CLEARED_AT_ONCE = 32  # entries that an insert clears away; one more makes it some 10 us longer
SWEPT_AT_ONCE = 1000


class SemanticCache:
    """Responses by the keys of their requests; any number of threads may use it.

    A request is served an entry of the same key space, scope, modalities present and versions,
    whose key is as similar as ``acceptance`` asks for. What is stored under the very same key and
    scope is replaced. Time never goes back: see ``SteadyClock``.

    Args:
        folder: Where to keep it, made if missing; what is there is restored. None: in memory alone.
        models: What makes keys; the first one's are used unless ``assign`` says otherwise.
        acceptance: Rule for the similarity.
        policy: Makes the policy of a capacity. After a restart it knows in which order entries were
            used at the last ``flush``, and nothing else of the past.
        max_entries: Budget of entries; None is any number.
        max_bytes: Budget of bytes, see ``Entry.nbytes``; None is any size.
        ttl: Seconds until an entry expires, unless ``insert`` says otherwise; None is never.
        assign: Returns the number of the model for a request, for an A/B test: see ``ab``.
        audit_share: Share of hits that are drawn to be asked upstream as well.
        seed: Of that draw.
        radius: Greatest Hamming distance of an entry's code; None is any.
        clock: Seconds since the epoch.

    Raises:
        CacheError: A setting cannot be taken.
        CacheFilesError: The folder is in use, damaged, of a newer format or of something else.
        OSError: The folder cannot be made, read or written.
    """

    def __init__(
        self,
        folder: str | Path | None,
        models: KeyMaker | Sequence[KeyMaker],
        *,
        acceptance: Acceptance,
        policy: Callable[[int], Policy] = LRU,
        max_entries: int | None = None,
        max_bytes: int | None = None,
        ttl: float | None = None,
        assign: Callable[[Request], int] | None = None,
        audit_share: float = 0.0,
        seed: int = 0,
        radius: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        makers = models if isinstance(models, Sequence) else [models]
        spaces = [maker.space for maker in makers]
        if not spaces or len({space.fingerprint for space in spaces}) < len(spaces):
            raise CacheError(f"{len(spaces)} models given; give 1 or more, of different key spaces")
        if not 0 <= audit_share <= 1:
            raise CacheError(f"audit_share is {audit_share}; give a share, 0 to 1")
        if folder == "":
            raise CacheError('folder is ""; name one, or give None to keep all in memory')
        self._ttl = _seconds("ttl", ttl)
        self._acceptance, self._assign, self._radius = acceptance, assign, radius
        self._audit_share, self._random = audit_share, random.Random(seed)
        self._makers = list(makers)
        self._counts = {space.fingerprint: Counter[str]() for space in spaces}
        self._other_counts = Counter[str]()  # of key spaces that are held, and not served
        self._learn = threading.Lock()  # of what follows; taken after that of the entries, if both
        eviction = Eviction(policy, max_entries, max_bytes)
        place = None if folder is None else Path(folder)
        if place is not None:
            with explained(place, "opened", "cache"):
                place.mkdir(parents=True, exist_ok=True)
        self._entries = Entries(place, spaces, eviction)
        self._closed = False
        try:
            store = self._entries.store
            self._spots = Spots(store.spots())
            self._versions = Versions(store.versions())
            self._raised = self._versions.raised()
            self._now = SteadyClock(clock, max(self._entries.newest, store.about("time") or 0.0))
            before = store.about("acceptance")
            if before is not None:
                resume(acceptance, before)
        except BaseException:
            self._entries.close()
            raise

    def __len__(self) -> int:
        return len(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def lookup(self, request: Request) -> Hit | Miss:
        """Return the entry that is served for a request, or a miss.

        Raises:
            RequestError: The request cannot become a key.
        """
        grains = named_grains(request.scope)
        return self.lookup_key(self._encode(request), request.modalities, grains)

    def lookup_key(self, key: Key, modalities: str, grains: Mapping[str, str] = {}) -> Hit | Miss:
        """Return the entry that is served for a key, or a miss.

        Args:
            key: Of the request, made by one of the models.
            modalities: Those present in the request; see ``Request.modalities``.
            grains: What the request's scope names of scene, device and user, for their versions.
        """
        self._entries.store.require_open()
        counts, stamps = self._counted(key), self._versions.stamps(key.space.fingerprint, grains)
        probe = replace(key, scope_digest=versioned_digest(key.scope_digest, stamps))
        with self._learn:
            now = self._now()
        # It checks the key, before anything learns from it.
        near = self._entries.nearest(probe, now, self._radius)
        with self._learn:
            needed = self._acceptance.threshold(key, modalities)
            self._acceptance.observe(key, modalities)
            floor = self._spots.floor(_place(probe), key.vector)
        while near is not None and needed is not None and needed <= near[1] > floor:
            entry, similarity = self._entries.answered(near[0]), near[1]
            if entry is not None:
                self._entries.hit(entry.number, similarity, now)
                with self._learn:
                    counts["hits"] += 1
                    audit = self._random.random() < self._audit_share
                return Hit(entry, similarity, key, modalities, audit)
            near = self._entries.nearest(probe, now, self._radius)  # that one went meanwhile
        with self._learn:
            counts["misses"] += 1
        return Miss(key, modalities, stamps, None if near is None else near[1])

    def insert(
        self, request: Request | Miss, response: Any, *, cost: float = 1.0, ttl: float | None = None
    ) -> Entry | None:
        """Store the response of a request and return its entry.

        Args:
            request: A request, or the miss that a lookup of it was.
            response: Text, bytes, or what JSON can hold.
            cost: What the response cost to make, in any unit that is the same for all.
            ttl: Seconds until it expires; None is as the cache's.

        Returns:
            None when nothing is stored: the response is larger than the whole cache, or it answers
            a miss whose version was raised meanwhile. ``stats`` counts both.

        Raises:
            CacheError: The response, the cost or the time cannot be taken.
            OSError: The disk is full or broken; nothing has changed.
        """
        self._entries.store.require_open()
        miss = request if isinstance(request, Miss) else self._unseen(request)
        key, counts = miss.key, self._counted(miss.key)
        kind, content = encoded(response)
        if not (isinstance(cost, (int, float)) and 0 <= cost < float("inf")):
            raise CacheError(f"cost is {cost!r}; expected a number, 0 or more")
        lifetime = self._ttl if ttl is None else _seconds("ttl", ttl)
        key_rows(key.space, [key])
        nbytes = len(content) + key.code.nbytes + key.vector.nbytes
        digest = versioned_digest(key.scope_digest, miss.stamps)
        identity = _place(replace(key, scope_digest=digest)).encode()
        identity += key.code.tobytes() + key.vector.tobytes()
        with self._entries.change:
            if not self._entries.fits(nbytes) or not self._versions.current(miss.stamps):
                why = "too_late" if self._entries.fits(nbytes) else "too_large"
                with self._learn:
                    counts[why] += 1
                return None
            with self._learn:
                now = self._now()
            self._clear_some(now)
            entry = Entry(
                self._entries.take_number(), key, miss.modalities, response, float(cost), nbytes,
                now, None if lifetime is None else now + lifetime, miss.stamps,
            )  # fmt: skip
            row = Row(entry, digest, hashlib.sha256(identity).digest())
            evicted = self._entries.add(row, kind, content)
            with self._learn:
                counts.update(inserts=1, evictions=len(evicted))
        return entry

    def report_audit(self, hit: Hit, equivalent: bool) -> None:
        """Say what came of a hit that was drawn for an audit; a false one's entry goes.

        Args:
            hit: One whose ``audit`` is true: others are no fair sample, see ``report_false_hit``.
            equivalent: Whether the response that was served answers the request.
        """
        store = self._entries.store
        store.require_open()
        if not hit.audit:
            raise CacheError("hit was not drawn for an audit; use report_false_hit for a wrong one")
        if not equivalent:
            self.report_false_hit(hit)
        with self._entries.change:
            with self._learn:
                self._counted(hit.key)["audits"] += 1
                self._acceptance.audited(hit.key, hit.modalities, hit.similarity, equivalent)
                learned = kept(self._acceptance)
            with store.transaction():
                store.set_about("acceptance", learned)

    def report_false_hit(self, hit: Hit | int) -> None:
        """Remove an entry that was served wrongly.

        Args:
            hit: The hit; requests near its key will need a nearer entry: see ``spots``. Or the
                number of an entry, which is removed and nothing more.
        """
        self._entries.store.require_open()
        number = entry_number(hit.entry.number if isinstance(hit, Hit) else hit)
        spot = None
        if isinstance(hit, Hit):
            digest = versioned_digest(hit.key.scope_digest, hit.entry.stamps)
            place = _place(replace(hit.key, scope_digest=digest))
            spot = Spot(place, hit.key.vector, hit.similarity)
        with self._entries.change:
            self._clear([number], "false_hits", spot)
            if spot is not None:
                with self._learn:
                    self._spots.add(spot)

    def raise_version(self, grain: str, name: str, sweep: bool = False) -> int:
        """Make the entries of one scene, device, user or key space unreachable; return its version.

        Args:
            grain: ``scene``, ``device`` or ``user``, as the requests' scope names them, or
                ``key_space``.
            name: Which; of a key space its fingerprint.
            sweep: Remove them now; otherwise a few go with each insert.
        """
        check_grain(grain, name)
        store = self._entries.store
        store.require_open()
        with self._entries.change:
            stamp = Stamp(grain, name, self._versions[grain, name] + 1)
            with store.transaction():
                store.set_version(stamp)
            self._versions.set(stamp)
            self._raised.append(stamp)
            while sweep and self._clear(store.outdated(stamp, SWEPT_AT_ONCE), "outdated"):
                pass
        return stamp.version

    def stats(self, key_space: str | None = None) -> Stats:
        """Return what the cache holds and has done.

        Args:
            key_space: Fingerprint of the only one to count; None counts all.
        """
        if key_space is not None and key_space not in self._counts:
            raise CacheError(f"key_space is {key_space!r}; expected {' or '.join(self._counts)}")
        with self._learn:
            all_counts = [*self._counts.values(), self._other_counts]
            one = all_counts if key_space is None else [self._counts[key_space]]
            counts = sum(one, Counter[str]())
        held = len(self) if key_space is None else self._entries.count(key_space)
        figures = {one.name: counts[one.name] for one in fields(Stats)}
        figures["lookups"] = counts["hits"] + counts["misses"]
        figures["entries"], figures["nbytes"] = held, self._entries.nbytes
        return Stats(**figures)

    def flush(self) -> None:
        """Return when all that was done is on the disk, and survives a power cut.

        Raises:
            CacheFilesError: The folder was removed meanwhile.
            OSError: The disk is full or broken.
        """
        self._entries.store.require_open()
        with self._entries.change:
            with self._learn:
                learned = {"time": self._now.reached, "acceptance": kept(self._acceptance)}
            self._entries.flush(learned)

    def close(self) -> None:
        """Flush and let others open the folder; a second call does nothing.

        A forked child leaves the folder to the process that opened it.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._entries.store.mine:
                self.flush()
        finally:
            self._entries.close()

    def _encode(self, request: Request) -> Key:
        number = 0 if self._assign is None else self._assign(request)
        if not 0 <= number < len(self._makers):
            raise CacheError(f"assign returned {number}; expected 0 to {len(self._makers) - 1}")
        return self._makers[number].encode(request)

    def _unseen(self, request: Request) -> Miss:
        """Return the miss of a request that was not looked up."""
        if not isinstance(request, Request):
            raise CacheError(f"request is {type(request).__name__}; expected a Request or a Miss")
        key, grains = self._encode(request), named_grains(request.scope)
        return Miss(key, request.modalities, self._versions.stamps(key.space.fingerprint, grains))

    def _counted(self, key: Key) -> Counter[str]:
        """Return the counts of a key's space."""
        counts = self._counts.get(key.space.fingerprint)
        if counts is None:
            names = ", ".join(f"{one.space.name} ({one.space.fingerprint})" for one in self._makers)
            raise CacheError(
                f"key is of {key.space.name} ({key.space.fingerprint}); this cache holds {names}"
            )
        return counts

    def _clear_some(self, now: float) -> None:
        """Remove a few entries that are never served again."""
        store = self._entries.store
        self._clear(store.expired(now, CLEARED_AT_ONCE), "expired")
        for _ in range(min(CLEARED_AT_ONCE, len(self._raised))):
            if self._clear(store.outdated(self._raised[-1], CLEARED_AT_ONCE), "outdated"):
                break
            self._raised.pop()

    def _clear(self, numbers: Sequence[int], why: str, spot: Spot | None = None) -> int:
        """Remove entries, keep a false hit's spot, and return how many were there."""
        rows = self._entries.remove(numbers, spot)
        with self._learn:
            for row in rows:
                mark = row.entry.key.space.fingerprint
                self._counts.get(mark, self._other_counts)[why] += 1
        return len(rows)


def _place(probe: Key) -> str:
    """Return where a key is looked up: similarities of two key spaces cannot be compared."""
    return f"{probe.space.fingerprint}:{probe.scope_digest}"


def _seconds(name: str, value: float | None) -> float | None:
    if value is not None and not (isinstance(value, (int, float)) and 0 < value < float("inf")):
        raise CacheError(f"{name} is {value!r}; expected seconds, more than 0, or None for never")
    return value
