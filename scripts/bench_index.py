"""Measure the index of a cache: python -m scripts.bench index --sizes 10000 100000 1000000

Keys are synthetic, in groups of ten whose codes differ in about 4 % of their bits, half of the
searches are for stored groups and half for new ones; one key at a time, on one thread.
"""

import argparse
import os
import sys
from pathlib import Path

from keynet.evaluation.bench import busy
from keynet.evaluation.index_cost import codes_cost, cost_table, index_cost
from keynet.evaluation.report import write_report
from keynet.types import CODE_BITS, KeySpace

LARGE, LARGE_BITS = 10_000_000, 256


def say(line: str) -> None:
    """Print a line of progress at once."""
    print(line, file=sys.stderr, flush=True)


def space(bits: int, dim: int) -> KeySpace:
    """Return the key space of synthetic keys."""
    return KeySpace("clusters", 1, dim, bits, "synthetic")


def index(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    for name, least, numbers in (
        ("--sizes", 1000, args.sizes),
        ("--dim", 1, [args.dim]),
        ("--queries", 100, [args.queries]),
    ):
        for number in numbers:
            if number < least:
                raise ValueError(f"{name} {number}: expected at least {least}")
    remark = busy(os.getloadavg()[0])
    if remark:
        say(f"{remark}: figures will not hold; let other work end first")
    args.out.mkdir(parents=True, exist_ok=True)
    records = []
    for bits in args.bits:
        for size in args.sizes:
            say(f"{size:,} entries of {bits} bits")
            records += index_cost(space(bits, args.dim), size, args.queries, args.out, say)
    if args.large:
        records += codes_cost(space(LARGE_BITS, args.dim), LARGE, args.queries, say)
    write_report(args.out / "report.json", records, " ".join(["python", *sys.argv]))
    print(cost_table(records))
    print(f"Keys of {args.dim} dimensions, synthetic: groups of ten, 4 % of bits apart.")
    print(f"report: {args.out / 'report.json'}")


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command to those of scripts.bench."""
    one = commands.add_parser("index", help="the cache's index: time, memory, disk, recall")
    one.set_defaults(run=index)
    one.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    one.add_argument("--bits", nargs="+", type=int, choices=CODE_BITS, default=[256])
    one.add_argument("--dim", type=int, default=256, help="of the vectors")
    one.add_argument("--queries", type=int, default=2000, help="searches that are timed")
    one.add_argument(
        "--large", action="store_true",
        help=f"also {LARGE:,} codes of {LARGE_BITS} bits, without vectors: 2 GB and 10 minutes",
    )  # fmt: skip
    one.add_argument("--out", type=Path, default=Path("outputs/bench/index"))
