"""What hashing a key and searching codes cost on a CPU, beside the libraries that do the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from keynet.evaluation.records import Record, Sheet
from keynet.hashing import hamming_search, hash_keys
from keynet.hashing.cpu import nearest

DATA, SPLIT = "noise", "bench"
BITS, DIM = 256, 512
DIMS = (256, DIM)  # KeyNet's keys, and wide ones
OP, CALL, READ = "keynet hamming_search", "keynet nearest, as the index", "plain read"
LEAST_ROUNDS, MOST_ROUNDS, WARM_UPS = 5, 300, 3
TURN, KEY_BUDGET = 5e-3, 5.0  # seconds
Words = NDArray[np.int32]
Run = Callable[[], Any]


def search_seconds(
    size: int, k: int, budget: float, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """Return the seconds of each run of one query, by name; all run in turns, on one thread.

    Args:
        size: How many random codes of 256 bits.
        k: How many to find.
        budget: Seconds after which no further round begins, once five were run.
        say: Takes lines of progress.

    Raises:
        AssertionError: Two found different distances.
    """
    made = np.random.default_rng(0)
    codes = made.integers(-(2**31), 2**31, (size, BITS // 32), np.int32)
    query = made.integers(-(2**31), 2**31, (1, BITS // 32), np.int32)
    asked, store = torch.from_numpy(query), torch.from_numpy(codes)
    runs: dict[str, Run] = {
        OP: lambda: hamming_search(asked, store, k)[0].numpy(),
        CALL: lambda: nearest(query, codes, k)[0],
        **_libraries(query, codes, k),
    }
    expected = runs[OP]()
    for name, run in runs.items():
        assert np.array_equal(run(), expected), f"{name} finds other distances than {OP}"
    runs[READ] = lambda: codes.view(np.uint64).sum()
    found = rounds(runs, budget)
    say(f"{size:,} codes: {len(found[OP])} rounds")
    return found


def key_seconds(dim: int) -> dict[str, list[float]]:
    """Return the seconds of each run of hashing one key of so many numbers, by name."""
    torch.manual_seed(0)
    key, weight, bias = torch.randn(1, dim), torch.randn(BITS, dim), torch.randn(BITS)
    row, matrix, shift = key.numpy(), weight.numpy().T, bias.numpy()
    runs: dict[str, Run] = {
        "hash_keys": lambda: hash_keys(key, weight, bias),
        "the op alone": lambda: torch.ops.keynet.hash_keys(key, weight, bias),
        "product and packbits": lambda: np.packbits(row @ matrix + shift >= 0, axis=1),
    }
    return rounds(runs, KEY_BUDGET)


def rounds(runs: Mapping[str, Run], budget: float) -> dict[str, list[float]]:
    """Return the seconds of a run, of each round; a round takes all in turns.

    So disturbances fall on all alike. In its turn each runs for some milliseconds, that what the
    others left in the caches does not count.
    """
    times = {name: min(_seconds(run, 1) for _ in range(WARM_UPS)) for name, run in runs.items()}
    repeats = {name: max(1, int(TURN / time)) for name, time in times.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    began = perf_counter()
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and perf_counter() - began > budget:
            break
        for name, run in runs.items():
            found[name].append(_seconds(run, repeats[name]))
    return found


def _seconds(run: Run, repeats: int) -> float:
    start = perf_counter()
    for _ in range(repeats):
        run()
    return (perf_counter() - start) / repeats


def search_records(size: int, seconds: Mapping[str, Sequence[float]], k: int) -> list[Record]:
    """Return medians, ratios to the fastest library, and shares of the speed of a plain read."""
    middle = {name: median(times) for name, times in seconds.items()}
    fastest = min(time for name, time in middle.items() if name not in (OP, CALL, READ))
    records = []
    for name, times in seconds.items():
        sheet = Sheet(DATA, SPLIT, f"codes_{size}", name, BITS)
        note = f"one query, k={k}, one thread"
        records.append(latency(sheet, times, note))
        if name != READ:
            n = len(times)
            share = middle[READ] / middle[name]
            records.append(sheet.figure("ratio:fastest", middle[name] / fastest, n=n, unit="ratio"))
            records.append(sheet.figure("share_of_read", share, n=n))
    return records


def key_records(seconds: Mapping[str, Sequence[float]], dim: int) -> list[Record]:
    """Return the medians of hashing one key."""
    return [
        latency(Sheet(DATA, SPLIT, f"key_width_{dim}", name, BITS), times, "one key")
        for name, times in seconds.items()
    ]


def latency(sheet: Sheet, seconds: Sequence[float], note: str) -> Record:
    """Return the median in milliseconds with the least and the greatest."""
    p50, low, high = (1000 * s for s in (median(seconds), min(seconds), max(seconds)))
    return sheet.figure("latency_ms_p50", p50, low, high, len(seconds), note, "ms")


def cost_table(records: Sequence[Record]) -> str:
    """Return a line a method and size: time, and whatever else was measured of it."""
    found = {(r.subset, r.method, r.metric): r for r in records}
    others = dict.fromkeys(r.metric for r in records if r.metric != "latency_ms_p50")
    width = max(len(r.method) for r in records)
    heads = [m.replace("ratio:", "x ").replace("_", " ") for m in others]
    lines = []
    for subset in dict.fromkeys(r.subset for r in records):
        what, _, count = subset.rpartition("_")
        head = " ".join(f"{name:>14}" for name in heads)
        lines.append(f"\n{what.replace('_', ' ')}, {int(count):,}")
        lines.append(f"{'':{width}} {'us':>12} {head}")
        for record in records:
            if record.subset == subset and record.metric == "latency_ms_p50":
                cells = (found.get((subset, record.method, metric)) for metric in others)
                row = " ".join(f"{'' if c is None else f'{c.value:.3g}':>14}" for c in cells)
                us = 1000 * (record.value or 0.0)
                lines.append(f"{record.method:{width}} {us:>12,.1f} {row}".rstrip())
    return "\n".join(lines).strip()


def _libraries(query: Words, codes: Words, k: int) -> dict[str, Run]:
    by_word = np.ascontiguousarray(codes.T).view(np.uint32)  # [W, N]

    def counted() -> Any:
        counts = np.zeros(len(codes), np.uint16)
        for words, word in zip(by_word, query.view(np.uint32)[0], strict=True):
            counts += np.bitwise_count(words ^ word)
        return np.sort(np.partition(counts, k - 1)[:k])[None].astype(np.int32)

    runs: dict[str, Run] = {"NumPy by words": counted}
    try:
        import faiss
    except ModuleNotFoundError:
        return runs
    faiss.omp_set_num_threads(1)
    flat = faiss.IndexBinaryFlat(BITS)
    asked, store = query.view(np.uint8), codes.view(np.uint8)
    flat.add(store)
    runs["faiss IndexBinaryFlat"] = lambda: flat.search(asked, k)[0]
    for variant in ("hc", "mc"):
        runs[f"faiss knn_hamming {variant}"] = partial(knn, faiss, asked, store, k, variant)
    return runs


def knn(faiss: Any, asked: NDArray[Any], store: NDArray[Any], k: int, variant: str) -> Any:
    """Return the distances that faiss finds in codes where they lie."""
    return faiss.knn_hamming(asked, store, k, variant=variant)[0]
