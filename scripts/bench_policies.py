"""Compare replacement policies on plain traces: python -m scripts.bench policies --trace FILE

Each policy at shares of the footprint: its hit rate, and requests a second on one thread, by the
time that the thread ran. One trace is drawn, with popularity by Zipf's law; others are files in the
format oracleGeneral, once with each object of size 1 and once in bytes. Policies that go by
similarity have nothing to go by there; they are timed with synthetic vectors.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import thread_time
from typing import NamedTuple

import numpy as np

from keynet.cache.policies.catalog import POLICIES
from keynet.evaluation.bench import busy
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.report import write_report
from keynet.replay.oracle_general import read_oracle_general
from keynet.replay.policy_replay import replay_policy
from scripts.bench_index import say

BY_SIMILARITY = ("ssrp", "heat_graph")
LATENT = 32  # dimensions that the synthetic vectors vary in
HIT_RATE, SIZE_HIT_RATE, SPEED = "hit_rate", "size_hit_rate", "requests_per_second"


class PlainTrace(NamedTuple):
    """Objects numbered from 0 and their sizes, each object's that of its first visit."""

    name: str
    objects: np.ndarray
    sizes: np.ndarray

    def footprint(self) -> int:
        """Size of all objects together."""
        return int(self.sizes[np.unique(self.objects, return_index=True)[1]].sum())


def zipf(visits: int, objects: int, exponent: float, seed: int) -> PlainTrace:
    """Draw a trace."""
    weight = (1.0 + np.arange(objects)) ** -exponent
    drawn = np.random.default_rng(seed).choice(objects, visits, p=weight / weight.sum())
    return PlainTrace(f"zipf_{exponent:g}", drawn, np.ones(visits, np.int64))


def traces(args: argparse.Namespace) -> Iterator[PlainTrace]:
    """Draw one, then read the others."""
    yield zipf(args.visits, args.objects, args.exponent, args.seed)
    for path in args.trace:
        say(f"reading {path}")
        visits = [(visit.object, visit.size) for visit in read_oracle_general(path)]
        asked, size = np.array(visits, np.uint64).T
        _, first, objects = np.unique(asked, return_index=True, return_inverse=True)
        name = path.name.partition(".")[0]
        yield PlainTrace(name, objects, np.ones(len(objects), np.int64))
        yield PlainTrace(f"{name}_bytes", objects, size.astype(np.int64)[first][objects])


def measured(
    name: str,
    trace: PlainTrace,
    capacity: int,
    subset: str,
    seed: int,
    vectors: np.ndarray | None = None,
) -> list[Record]:
    """Replay a trace under a policy."""
    policy = POLICIES[name](capacity, seed)
    start = thread_time()
    found = replay_policy(policy, capacity, trace.objects, trace.sizes, vectors)
    speed = len(found.hit) / (thread_time() - start)
    sheet = Sheet(trace.name, "bench", subset, name, None)
    records = [sheet.share(HIT_RATE, found.hits, len(found.hit))]
    if int(trace.sizes.max()) > 1:
        records.append(sheet.figure(SIZE_HIT_RATE, found.size_hit_rate, n=len(found.hit)))
    return [*records, sheet.figure(SPEED, speed, n=len(found.hit), unit="1/s")]


def vectors_of(objects: int, dim: int, seed: int) -> np.ndarray:
    """Return unit rows [N, D] that vary in few dimensions, as those of real keys do."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((objects, LATENT)) @ rng.standard_normal((LATENT, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def policies(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    for name, least in (("visits", 1000), ("objects", 100), ("entries", 1), ("dim", 1)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name} {getattr(args, name)}: expected at least {least}")
    for share in args.share:
        if not 0 < share <= 1:
            raise ValueError(f"--share {share}: expected more than 0, up to 1")
    remark = busy(os.getloadavg()[0])
    if remark:
        say(f"{remark}: speeds will be low; let other work end first")
    plain = [name for name in POLICIES if name not in BY_SIMILARITY]
    records: list[Record] = []
    for trace in traces(args):
        for share in args.share:
            capacity = max(1, round(share * trace.footprint()))
            say(f"{trace.name}: {capacity:,}, {share:g} of the footprint")
            for name in plain:
                records += measured(name, trace, capacity, f"share_{share:g}", args.seed)
    say(f"{args.entries:,} entries with vectors of {args.dim} dimensions")
    trace = zipf(args.visits, 4 * args.entries, args.exponent, args.seed)._replace(name="vectors")
    rows = vectors_of(4 * args.entries, args.dim, args.seed)
    for name in ("lru", *BY_SIMILARITY):
        subset = f"entries_{args.entries}"
        records += measured(name, trace, args.entries, subset, args.seed, rows)
    write_report(args.out / "report.json", records, " ".join(["python", *sys.argv]))
    print(table(records))
    print(f"report: {args.out / 'report.json'}")


def table(records: Sequence[Record]) -> str:
    """Return a row a policy, a column a trace and share: hit rate, and thousands a second."""
    lines = []
    for data in dict.fromkeys(record.data for record in records):
        there = [record for record in records if record.data == data]
        found = {(r.method, r.subset, r.metric): r.value or 0.0 for r in there}
        subsets = list(dict.fromkeys(record.subset for record in there))
        lines.append(f"{data:24}" + "".join(f"{subset:>24}" for subset in subsets))
        for name in dict.fromkeys(record.method for record in there):
            cells = (
                f"{found[name, one, HIT_RATE]:13.4f}{found[name, one, SPEED] / 1000:8,.0f} k/s"[:24]
                for one in subsets
            )
            lines.append(f"{name:24}" + "".join(f"{cell:>24}" for cell in cells))
        lines.append("")
    return "\n".join(lines)


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command to those of scripts.bench."""
    one = commands.add_parser("policies", help="replacement policies: hit rates, requests a second")
    one.set_defaults(run=policies)
    one.add_argument("--trace", nargs="*", type=Path, default=[], help="oracleGeneral files")
    one.add_argument("--share", nargs="+", type=float, default=[0.01, 0.05, 0.2])
    one.add_argument("--visits", type=int, default=100_000, help="of the drawn trace")
    one.add_argument("--objects", type=int, default=20_000, help="of the drawn trace")
    one.add_argument("--exponent", type=float, default=1.0, help="of its popularity")
    one.add_argument("--entries", type=int, default=5000, help="where vectors are given")
    one.add_argument("--dim", type=int, default=256, help="of the vectors")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--out", type=Path, default=Path("outputs/bench/policies"))
