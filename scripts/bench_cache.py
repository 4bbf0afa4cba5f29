"""Measure the cache beside its key model: python -m scripts.bench cache --entries 100000

Lookups arrive at random at a rate, whatever is unanswered; the time runs from each arrival.
Keys are synthetic, half of the lookups are for stored groups; what is missed is stored.
"""

import argparse
import os
import sys
from pathlib import Path

from keynet.evaluation.bench import busy
from keynet.evaluation.cache_cost import cache_cost
from keynet.evaluation.index_cost import cost_table
from keynet.evaluation.report import write_report
from keynet.types import CODE_BITS
from scripts.bench_index import say, space


def cache(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    for name in ("entries", "dim", "rate", "seconds", "threads"):
        if not getattr(args, name) > 0:
            raise ValueError(f"--{name} {getattr(args, name)}: expected more than 0")
    remark = busy(os.getloadavg()[0])
    if remark:
        say(f"{remark}: figures will not hold; let other work end first")
    args.out.mkdir(parents=True, exist_ok=True)
    records = cache_cost(
        space(args.bits, args.dim),
        args.entries,
        args.rate,
        args.seconds,
        args.threads,
        args.out,
        say,
    )
    write_report(args.out / "report.json", records, " ".join(["python", *sys.argv]))
    print(cost_table(records))
    print(f"report: {args.out / 'report.json'}")


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command to those of scripts.bench."""
    one = commands.add_parser("cache", help="the cache: lookups in open loop, inserts, restoring")
    one.set_defaults(run=cache)
    one.add_argument("--entries", type=int, default=100_000)
    one.add_argument("--rate", type=float, default=500.0, help="lookups a second")
    one.add_argument("--seconds", type=float, default=60.0)
    one.add_argument(
        "--threads", type=int, default=os.cpu_count() or 1, help="that answer them; one a core"
    )
    one.add_argument("--bits", type=int, choices=CODE_BITS, default=256)
    one.add_argument("--dim", type=int, default=256, help="of the vectors")
    one.add_argument("--out", type=Path, default=Path("outputs/bench/cache"))
