"""What a cache costs beside making keys: lookups in open loop, inserts, restoring, disk."""

from __future__ import annotations

import gc
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, sleep

import numpy as np

from keynet.cache.acceptance import FixedThreshold
from keynet.cache.cache import Hit, Miss, SemanticCache
from keynet.cache.key_maker import GivenKeys
from keynet.evaluation.index_cost import Clusters, Say
from keynet.evaluation.records import Record, Sheet
from keynet.types import Key, KeySpace

DATA, SPLIT, BOTH = "clusters", "bench", "image+text"
BATCH = 1000
THRESHOLD = 0.95  # members of a group are nearer, those of others farther
RESPONSE = "x" * 400  # characters, a short answer
WARM_UPS = 100
WINDOW = 5  # seconds


def cache_cost(
    space: KeySpace,
    entries: int,
    rate: float,
    seconds: float,
    threads: int,
    folder: Path,
    say: Say,
) -> list[Record]:
    """Return the figures of a cache of so many entries in one scope, kept in a folder.

    Args:
        space: Of the keys.
        entries: How many.
        rate: Lookups a second, which arrive at random (a Poisson process), whether or not those
            before are answered. Half are for stored groups; each miss is answered and stored.
        seconds: How long they arrive.
        threads: That answer them.
        folder: Where the cache makes a folder of its own, which is removed.
        say: Takes lines of progress.
    """
    clusters = Clusters(space, entries)
    sheet = Sheet(DATA, SPLIT, f"entries_{entries}", "cache", space.bits)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        place = Path(own) / "cache"
        cache = _opened(place, space, entries * 2)
        rates = []
        for first in range(0, entries, BATCH):
            keys = clusters.keys(np.arange(first, min(first + BATCH, entries)) // 10)
            start = perf_counter()
            for key in keys:
                cache.insert(Miss(key, BOTH, ()), RESPONSE)
            rates.append(len(keys) / (perf_counter() - start))
            if first % (20 * BATCH) == 0:
                say(f"inserted {first + len(keys):,} of {entries:,}")
        cache.flush()
        asked = clusters.queries(int(rate * seconds) + WARM_UPS)
        gc.collect()
        gc.freeze()  # as a server does: one collection over all that is imported takes 100 ms
        for key in asked[:WARM_UPS]:
            cache.lookup_key(key, BOTH)
        say(f"{rate:g} lookups a second for {seconds:g} s")
        waits, inserts = open_loop(cache, asked[WARM_UPS:], rate, threads)
        gc.unfreeze()
        stats = cache.stats()
        cache.close()
        disk = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        start = perf_counter()
        with _opened(place, space, entries * 2) as restored:
            restore, held = perf_counter() - start, len(restored)
    what = f"{rate:g} a second, {threads} threads, {len(inserts)} of them stored too"
    window = max(1, int(rate * WINDOW))
    stored = max(1, window * len(inserts) // max(1, len(waits)))
    return [
        sheet.figure("inserts_per_second", float(np.median(rates)), n=entries, unit="1/s"),
        *_percentiles(sheet, "lookup_ms", waits, window, what),
        *_percentiles(sheet, "insert_ms", inserts, stored, "beside these lookups"),
        sheet.share("hit_rate", stats.hits, stats.lookups),
        sheet.figure("disk_bytes_per_entry", disk / held, n=held, unit="bytes"),
        sheet.figure("restore_s", restore, n=held, unit="s"),
    ]


def open_loop(
    cache: SemanticCache, keys: Sequence[Key], rate: float, threads: int
) -> tuple[list[float], list[float]]:
    """Return milliseconds from when each lookup arrived to its answer, and those of each insert.

    A lookup arrives whether or not those before are answered. How late the system wakes the thread
    that sends them, up to a millisecond after they were due, is no wait for the cache.
    """
    due = np.cumsum(np.random.default_rng(0).exponential(1 / rate, len(keys))).tolist()
    waits, inserts, lock = list[float](), list[float](), threading.Lock()
    start = perf_counter()

    def serve(key: Key, when: float) -> None:
        found = cache.lookup_key(key, BOTH)
        wait = perf_counter() - when
        took = None
        if not isinstance(found, Hit):
            begun = perf_counter()
            cache.insert(found, RESPONSE)
            took = perf_counter() - begun
        with lock:
            waits.append(wait * 1000)
            if took is not None:
                inserts.append(took * 1000)

    with ThreadPoolExecutor(threads) as pool:
        for key, when in zip(keys, due, strict=True):
            sleep(max(0.0, when - (perf_counter() - start)))
            pool.submit(serve, key, perf_counter())
    return waits, inserts


def _opened(folder: Path, space: KeySpace, max_entries: int) -> SemanticCache:
    rule = FixedThreshold(THRESHOLD)
    return SemanticCache(folder, GivenKeys(space), acceptance=rule, max_entries=max_entries)


def _percentiles(
    sheet: Sheet, name: str, times: Sequence[float], window: int, note: str
) -> list[Record]:
    """Return the median, the 99th percentile of all, and the median of those of the windows.

    A machine that stands still for a tenth of a second spoils one window.
    """
    if not times:
        return [sheet.figure(f"{name}_p50", None, unit="ms", note=note)]
    firsts = range(0, max(1, len(times) - window + 1), window)
    windows = [float(np.percentile(times[at : at + window], 99)) for at in firsts]
    figures = {
        "p50": float(np.median(times)),
        "p99": float(np.median(windows)),
        "p99_of_all": float(np.percentile(times, 99)),
    }
    told = f"{note}; p99 is the median of {len(windows)} windows"
    return [
        sheet.figure(f"{name}_{which}", value, n=len(times), unit="ms", note=told)
        for which, value in figures.items()
    ]
