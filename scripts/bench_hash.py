"""The part of scripts.bench that measures hashing and search: python -m scripts.bench hash

On a GPU: a search by device events, beside the speed of a copy and torch. Without one: a search on
one thread of the CPU, beside faiss and NumPy.
"""

import argparse
import os
import sys
from pathlib import Path

import torch

from keynet.evaluation.bench import busy
from keynet.evaluation.hash_cost import (
    DIMS,
    cost_table,
    key_records,
    key_seconds,
    search_records,
    search_seconds,
)
from keynet.evaluation.records import Record
from keynet.evaluation.report import write_report
from keynet.hashing.ops import MOST

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


def add(commands: argparse._SubParsersAction) -> None:
    """Add ``hash`` to the commands."""
    one = commands.add_parser("hash", help="hashing of keys and search of codes")
    one.set_defaults(run=run)
    one.add_argument("--k", type=int, default=10, help="how many to find")
    one.add_argument(
        "--budget", type=float, default=10.0, help="seconds of a size of the CPU part, or more"
    )
    one.add_argument("--out", type=Path, default=Path("outputs/bench/hash"))


def run(args: argparse.Namespace) -> None:
    """Measure, print, write."""
    if not 1 <= args.k <= MOST:
        raise ValueError(f"--k {args.k}: give a number from 1 to {MOST}")
    if torch.cuda.is_available():
        # Only here: triton is not needed without a GPU.
        from keynet.evaluation.hash_cost_gpu import gpu_records

        records = gpu_records(SIZES[-1], args.k, say)
        where = torch.cuda.get_device_name(0)
    else:
        say("no GPU here: its part is left out")
        records = on_cpu(args)
        where = "one thread of the CPU"
    write_report(args.out / "report.json", records, " ".join(["python", *sys.argv]))
    print(cost_table(records))
    print(f"Medians on {where}; random codes and keys.\nreport: {args.out / 'report.json'}")


def on_cpu(args: argparse.Namespace) -> list[Record]:
    """Return the figures of the CPU."""
    remark = busy(os.getloadavg()[0])
    if remark:
        say(f"{remark}: figures will not hold; let other work end first")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        records = [one for dim in DIMS for one in key_records(key_seconds(dim), dim)]
        for size in SIZES:
            records += search_records(size, search_seconds(size, args.k, args.budget, say), args.k)
    finally:
        torch.set_num_threads(threads)
    return records


def say(line: str) -> None:
    """Print a line of progress at once."""
    print(line, file=sys.stderr, flush=True)
