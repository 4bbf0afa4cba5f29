"""What hashing keys and searching codes cost on a GPU, beside torch and the memory's speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from keynet.evaluation.hash_cost import BITS, DATA, DIM, SPLIT, latency
from keynet.evaluation.records import Record, Sheet
from keynet.hashing.triton_search import search

STORES, KEY_SETS = 4, 64  # buffers in turns: more than a GPU's cache holds
WARM_UPS, ROUNDS = 3, 30
KEYS = 1024
CHUNK = 1 << 20  # codes of a product of torch: its result is 512 MiB at 256 queries
Call = Callable[[], Any]


def gpu_records(size: int, k: int, say: Callable[[str], None]) -> list[Record]:
    """Return every figure of the first GPU.

    Args:
        size: How many random codes of 256 bits.
        k: How many to find.
        say: Takes lines of progress.
    """
    torch.manual_seed(0)
    with torch.inference_mode():
        stores = [random_words(BITS // 32, size).T for _ in range(STORES)]
        say(f"{size:,} codes in {STORES} stores")
        records, speed = copy_records(stores)
        records += search_records(stores, k, speed, say)
        del stores[1:]
        records += beside_torch(stores[0], k, say)
        return records + key_records(speed)


def device_seconds(calls: Sequence[Call]) -> list[float]:
    """Return seconds a call, of each replay of one graph that makes all of them, by events."""
    for call in list(calls) * WARM_UPS:
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    make: Any = torch.cuda.Event  # torch gives it no types
    marks = [make(enable_timing=True) for _ in range(ROUNDS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return [one.elapsed_time(two) / 1000 / len(calls) for one, two in pairwise(marks)]


def copy_records(stores: Sequence[Tensor]) -> tuple[list[Record], float]:
    """Return the time of copying a store, and bytes a second, those read and those written."""
    target = torch.empty_like(stores[0])
    seconds = device_seconds([partial(target.copy_, store) for store in stores])
    sheet = Sheet(DATA, SPLIT, f"queries_1_codes_{len(target)}", "device copy", BITS)
    return [latency(sheet, seconds, "read and written")], 2 * target.nbytes / median(seconds)


def search_records(
    stores: Sequence[Tensor], k: int, speed: float, say: Callable[[str], None]
) -> list[Record]:
    """Return the times of searching for 1, 64 and 256 queries, by counting and by products."""
    records = []
    for number, ways in ((1, (False,)), (64, (False, True)), (256, (False, True))):
        queries = random_words(number, BITS // 32)
        for matrix in ways:
            name = "keynet, int8 products" if matrix else "keynet, popcount"
            calls = [partial(search, queries, s, k, BITS, None, None, matrix) for s in stores]
            seconds = device_seconds(calls)
            subset = f"queries_{number}_codes_{len(stores[0])}"
            sheet = Sheet(DATA, SPLIT, subset, name, BITS)
            records.append(latency(sheet, seconds, f"k={k}"))
            share = stores[0].nbytes / median(seconds) / speed
            records.append(sheet.figure("share_of_copy", share, n=len(seconds)))
            say(f"{number} queries, {name}: {1e6 * median(seconds):,.1f} us")
    return records


def beside_torch(codes: Tensor, k: int, say: Callable[[str], None]) -> list[Record]:
    """Return the time of 256 queries by a product of +-1 in half precision, and topk."""
    chunks = [plus_minus(codes[i : i + CHUNK]) for i in range(0, len(codes), CHUNK)]
    queries = plus_minus(random_words(256, BITS // 32))

    def product() -> Tensor:
        best = [(queries @ chunk.T).topk(k, dim=1)[0] for chunk in chunks]
        return torch.cat(best, 1).topk(k, dim=1)[0]

    seconds = device_seconds([product])
    say(f"256 queries, torch: {1e6 * median(seconds):,.1f} us")
    subset = f"queries_256_codes_{len(codes)}"
    return [latency(Sheet(DATA, SPLIT, subset, "torch, product and topk", BITS), seconds, f"k={k}")]


def key_records(speed: float) -> list[Record]:
    """Return the times of hashing 1,024 keys, fused and op by op, and ratios to the least."""
    weight, bias = torch.randn(BITS, DIM, device="cuda"), torch.randn(BITS, device="cuda")
    sets = [torch.randn(KEYS, DIM, device="cuda") for _ in range(KEY_SETS)]
    codes, norms = torch.ops.keynet.hash_keys(sets[0], weight, bias)
    moved = sum(t.nbytes for t in (sets[0], weight, bias, codes, norms))
    places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device="cuda")

    def op_by_op(keys: Tensor) -> tuple[Tensor, Tensor]:
        lengths = keys.norm(dim=1)
        bits = F.linear(keys, weight) / lengths[:, None] + bias >= 0
        grouped = bits.unflatten(1, (-1, 8)).to(torch.uint8)  # [B, K/8, 8]
        return (grouped * places).sum(2, dtype=torch.uint8), lengths

    records = []
    for name, run in (
        ("keynet, fused", lambda keys: torch.ops.keynet.hash_keys(keys, weight, bias)),
        ("torch, op by op", op_by_op),
    ):
        seconds = device_seconds([partial(run, keys) for keys in sets])
        sheet = Sheet(DATA, SPLIT, f"keys_{KEYS}", name, BITS)
        records.append(latency(sheet, seconds, f"keys of {DIM}"))
        ratio = median(seconds) / (moved / speed)
        records.append(sheet.figure("ratio:memory floor", ratio, n=len(seconds), unit="ratio"))
    return records


def random_words(rows: int, columns: int) -> Tensor:
    """Return random int32 [rows, columns] on the GPU."""
    shape = (rows, columns)
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device="cuda")


def plus_minus(codes: Tensor) -> Tensor:
    """Return words [N, W] as float16 [N, 32 W] of 1 and -1."""
    shift = torch.arange(32, dtype=torch.int32, device=codes.device)
    bits = (codes[:, :, None] >> shift) & 1  # [N, W, 32]
    return (2 * bits.flatten(1) - 1).half()
