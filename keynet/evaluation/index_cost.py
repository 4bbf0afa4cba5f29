"""What an index costs: time of searches and inserts, memory, disk, and what its lists miss."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
from numpy.typing import NDArray

from keynet.cache.index import CodeIndex
from keynet.cache.scope import scope_digest
from keynet.cache.scope_codes import ScopeCodes
from keynet.evaluation.records import Record, Sheet
from keynet.hashing.cpu import nearest
from keynet.types import Key, KeySpace

GROUP = 10  # entries of a group
LATENT = 32  # dimensions that centres of groups vary in
SPREAD = 0.09  # angle between an entry and its centre; two of a group differ in 4 % of their bits
BATCH = 1000
INSERTED = 20_000  # keys that are inserted over and over, as new entries
PACED = 0.001  # seconds between two inserts of a server that takes 1,000 a second
WARM_UPS = 20
RESIDENT_FROM = 1_000_000  # entries; fewer take memory that the process had freed
DATA, SPLIT = "clusters", "bench"
SCOPE = scope_digest({}, has_image=True, has_text=True)

Say = Callable[[str], None]


class Clusters:
    """Keys with the structure of real ones: groups that lie close, in a space of few dimensions.

    Entry n is of group n // 10; its code is the signs of random projections of its vector. So codes
    of a group differ in about 4 % of their bits, and those of two groups are no coin flips.
    """

    def __init__(self, space: KeySpace, entries: int) -> None:
        self.space = space
        self._random = np.random.default_rng(0)
        self.groups = max(1, entries // GROUP)
        shape = (LATENT, space.dim)
        self._spread: NDArray[np.float32] = self._random.standard_normal(shape, np.float32)
        shape = (space.dim, space.bits)
        self._project: NDArray[np.float32] = self._random.standard_normal(shape, np.float32)
        # As many again, which stand for questions that are new.
        shape = (2 * self.groups, LATENT)
        self._centres: NDArray[np.float32] = self._random.standard_normal(shape, np.float32)

    def rows(self, groups: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        """Return codes uint8 [n, K/8] and vectors float32 [n, D] of new members of groups."""
        vectors = _unit(self._centres[groups] @ self._spread)
        noise = _unit(self._random.standard_normal(vectors.shape, np.float32))
        vectors = _unit(vectors + np.float32(np.tan(SPREAD)) * noise)
        return np.packbits(vectors @ self._project >= 0, axis=1), vectors

    def keys(self, groups: NDArray[np.int64]) -> list[Key]:
        """Return keys of new members of groups."""
        codes, vectors = self.rows(groups)
        return [
            Key(self.space, vector, code, None, SCOPE)
            for code, vector in zip(codes, vectors, strict=True)
        ]

    def queries(self, count: int) -> list[Key]:
        """Return keys to look for: half of stored groups, half of new ones, in turns."""
        groups = self._random.integers(0, self.groups, count)
        groups[1::2] += self.groups
        return self.keys(groups)


def index_cost(space: KeySpace, entries: int, queries: int, folder: Path, say: Say) -> list[Record]:
    """Return the figures of an index of so many entries in one scope, kept in a folder.

    Args:
        space: Of the keys.
        entries: How many, 1,000 or more.
        queries: How many searches are timed.
        folder: Where the index makes a folder of its own, which is removed.
        say: Takes lines of progress.
    """
    clusters = Clusters(space, entries)
    asked = clusters.queries(queries)
    sheet = Sheet(DATA, SPLIT, f"entries_{entries}", "index", space.bits)
    records = []

    def figure(metric: str, value: float | None, n: int, unit: str, note: str = "") -> None:
        records.append(sheet.figure(metric, value, n=n, unit=unit, note=note))

    with tempfile.TemporaryDirectory(dir=folder) as own:
        before = resident()
        index = CodeIndex(space, own)
        start = perf_counter()
        stored = np.concatenate(list(_filled(index, clusters, entries, say)))
        figure("bulk_inserts_per_second", entries / (perf_counter() - start), entries, "1/s")
        start = perf_counter()
        index.flush()
        say(f"flushed in {perf_counter() - start:.1f} s; waiting for lists, if there will be any")
        index.settle()
        lists = index.approximate(SCOPE)
        how = "inverted lists" if lists else "exact"
        figure("memory_bytes_per_entry", index.memory_bytes / entries, entries, "bytes", how)
        if entries >= RESIDENT_FROM:
            value = (resident() - before) / entries
            figure("resident_bytes_per_entry", value, entries, "bytes", how)

        say("searching")
        times = search_times(index, asked)
        for percentile in (50, 99):
            value = float(np.percentile(times, percentile))
            figure(f"search_ms_p{percentile}", value, len(times), "ms", how)
        for what, part in (("known", asked[::2]), ("new", asked[1::2])):
            found = recall(index, stored, part)
            records.append(sheet.share(f"recall_at_1_{what}", found, len(part), how))

        say("inserting")
        more = clusters.keys(np.arange(queries) % clusters.groups)
        figure("inserts_per_second", _inserted(index, entries, more), queries, "1/s")
        for metric, pause in (("full_speed", 0.0), ("paced", PACED)):
            times, rate, n = searched_while_inserting(index, clusters, asked, pause)
            note = "" if pause else "the inserting thread never waits"
            figure(f"inserts_per_second_searching_{metric}", rate, n, "1/s", note)
            for percentile in (50, 99):
                value = float(np.percentile(times, percentile))
                figure(f"search_ms_p{percentile}_inserting_{metric}", value, len(times), "ms", how)

        size = len(index)
        index.close()
        disk = sum(path.stat().st_size for path in Path(own).iterdir())
        figure("disk_bytes_per_entry", disk / size, size, "bytes")
        say("restoring")
        start = perf_counter()
        with CodeIndex(space, own) as restored:
            figure("restore_s", perf_counter() - start, len(restored), "s")
            if len(restored) != size:
                raise RuntimeError(f"restored {len(restored)} of {size} entries")
    return records


def codes_cost(space: KeySpace, entries: int, queries: int, say: Say) -> list[Record]:
    """Return the times of searching codes alone, without vectors: scanned, and in lists.

    Args:
        space: Of the keys; only its bits count.
        entries: How many codes.
        queries: How many searches are timed.
        say: Takes lines of progress.
    """
    clusters = Clusters(space, entries)
    codes = ScopeCodes(space.bits, 1, threading.Lock())
    codes.reserve(entries)
    say(f"making {entries:,} codes")
    for first in range(0, entries, BATCH):
        ids = np.arange(first, min(first + BATCH, entries))
        codes.extend(ids, clusters.rows(ids // GROUP)[0], np.ones((len(ids), 1), np.float32))
    asked = np.stack([key.code for key in clusters.queries(queries)])[:, None]  # [Q, 1, K/8]
    records: list[Record] = []
    exact: list[int] = []
    for how in ("scan", "inverted lists"):
        if how != "scan":
            say("building lists")
            start = perf_counter()
            codes.grown()
            codes.join()
            say(f"built in {perf_counter() - start:.0f} s")
        sheet = Sheet(DATA, SPLIT, f"entries_{entries}", f"codes: {how}", space.bits)
        times, distances = [], []
        for query in asked:
            start = perf_counter()
            found = codes.nearest(query, 32, space.bits)
            times.append(1000 * (perf_counter() - start))
            distances.append(int(found.distances[0, 0]))
        for percentile in (50, 99):
            value = float(np.percentile(times, percentile))
            records.append(sheet.figure(f"search_ms_p{percentile}", value, n=queries, unit="ms"))
        exact = exact or distances
        for what, first in (("known", 0), ("new", 1)):
            same = np.equal(exact, distances)[first::2]
            records.append(sheet.share(f"recall_at_1_{what}", int(same.sum()), len(same)))
    return records


def search_times(index: CodeIndex, keys: Sequence[Key]) -> NDArray[np.float64]:
    """Return the milliseconds of each search, one key at a time."""
    times = []
    for key in [*keys[:WARM_UPS], *keys]:
        start = perf_counter()
        index.search(key)
        times.append(1000 * (perf_counter() - start))
    return np.array(times[WARM_UPS:])


def recall(index: CodeIndex, codes: NDArray[np.uint8], keys: Sequence[Key]) -> int:
    """Return how many searches find a code as near as the nearest there is.

    Args:
        index: Of one scope.
        codes: All that it holds, uint8 [N, K/8].
        keys: What is searched.
    """
    asked = np.stack([key.code for key in keys]).view(np.int32)
    exact, _ = nearest(asked, codes.view(np.int32), 1)
    found = index.search_many(keys, k=32)
    best = [min((n.distance for n in some), default=-1) for some in found]
    return int(np.equal(best, exact[:, 0]).sum())


def searched_while_inserting(
    index: CodeIndex, clusters: Clusters, asked: Sequence[Key], pause: float
) -> tuple[NDArray[np.float64], float, int]:
    """Return milliseconds of searches while another thread inserts, its inserts/s and how many.

    Args:
        index: What is searched and grows.
        clusters: Of what is inserted.
        asked: What is searched.
        pause: Seconds from one insert to the next.
    """
    first, inserted, stopped = len(index), 0, threading.Event()
    more = cycle(clusters.keys(np.arange(INSERTED) % clusters.groups))

    def insert() -> None:
        nonlocal inserted
        for number, key in enumerate(more):
            if stopped.is_set():
                return
            if pause:
                sleep(max(0.0, start + number * pause - perf_counter()))
            index.insert(first + number, key)
            inserted += 1

    thread = threading.Thread(target=insert)
    start = perf_counter()
    thread.start()
    times = search_times(index, asked)
    stopped.set()
    thread.join()
    return times, inserted / (perf_counter() - start), inserted


def resident() -> int:
    """Return the bytes of memory that this process has (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cost_table(records: Sequence[Record]) -> str:
    """Return a table: a row a figure, a column an index."""
    columns = list(dict.fromkeys((r.subset, r.bits, r.method) for r in records))
    found = {(r.subset, r.bits, r.method, r.metric): r for r in records}
    metrics = list(dict.fromkeys(r.metric for r in records))
    units = {r.metric: r.unit for r in records}
    width = max(map(len, metrics)) + 8
    names = [(f"{int(s.removeprefix('entries_')):,}", f"{b} bits", m) for s, b, m in columns]
    heads = zip(*names, strict=True)
    lines = [" " * width + "".join(f"{cell:>22}" for cell in head) for head in heads]
    for metric in metrics:
        cells = [found.get((*column, metric)) for column in columns]
        values = (f"{_shown(cell.value):>22}" if cell else " " * 22 for cell in cells)
        lines.append(f"{metric + ' ' + units[metric]:{width}}" + "".join(values))
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def _filled(
    index: CodeIndex, clusters: Clusters, entries: int, say: Say
) -> Iterator[NDArray[np.uint8]]:
    """Insert entries and yield their codes."""
    start = said = perf_counter()
    for first in range(0, entries, BATCH):
        ids = range(first, min(first + BATCH, entries))
        keys = clusters.keys(np.array(ids) // GROUP)
        index.insert_many(ids, keys)
        yield np.stack([key.code for key in keys])
        if perf_counter() - said > 10:
            said = perf_counter()
            left = (said - start) * (entries - first) / (first + BATCH)
            say(f"inserted {first + BATCH:,} of {entries:,}, about {left:.0f} s left")


def _inserted(index: CodeIndex, first: int, keys: Sequence[Key]) -> float:
    """Insert one by one; return how many a second."""
    start = perf_counter()
    for number, key in enumerate(keys):
        index.insert(first + number, key)
    return len(keys) / (perf_counter() - start)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found
