"""Latency of several encoders beside each other, in one process and in turns."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter

import torch

from keynet.evaluation.peers import Encoder
from keynet.evaluation.records import Record, Sheet
from keynet.export.loader import CPU_BATCH_SIZE

WARM_UPS = 3
WARM_UP_SECONDS = 5.0  # no further warm-up begins after that
LEAST_RUNS = 2  # of each encoder, whatever the budget
SECONDS_A_LINE = 10.0
BUSY = 0.5  # load of other work
DATA, SPLIT = "noise", "bench"

Setting = tuple[int, int]  # batch size, threads
Timings = dict[Setting, dict[str, list[float]]]  # seconds of each counted run, by name


def measure(
    encoders: Sequence[Encoder],
    rounds: Mapping[int, int],
    threads: Sequence[int],
    budget: float,
    say: Callable[[str], None],
) -> Timings:
    """Return the seconds of each run; a round runs every encoder once, the next in reverse order.

    In turns, so that whatever else the machine does falls on all alike; every run follows one of
    another model, whose weights it finds in the processor's caches. A batch of more than the loader
    takes at once on a CPU runs whole or in slices of that, whichever its warm-up found faster.

    Args:
        encoders: Of different names.
        rounds: By batch size, how often each runs.
        threads: Numbers of threads.
        budget: Seconds after which an encoder is not run again at one batch size and number of
            threads, once it ran twice; its warm-up counts.
        say: Takes lines of progress.

    Raises:
        ValueError: When two encoders have one name, or a number is out of range.
    """
    names = [encoder.name for encoder in encoders]
    _check(names, rounds, threads)
    settings = [(batch, number) for batch in rounds for number in threads]
    progress = _Progress(names, settings, rounds, budget, say)
    before = torch.get_num_threads()
    found: Timings = {}
    try:
        for batch, number in settings:
            torch.set_num_threads(number)
            found[batch, number] = _measure_one(
                encoders, (batch, number), rounds[batch], budget, progress
            )
    finally:
        torch.set_num_threads(before)
    return found


def bench_records(
    encoders: Sequence[Encoder], peers: Sequence[str], times: Timings, remark: str = ""
) -> list[Record]:
    """Return medians with their least and greatest, ratios of medians to each peer, and sizes.

    Args:
        encoders: What was measured.
        peers: Names of those that the others are divided by.
        times: From ``measure``.
        remark: Noted with each latency, as that the machine was busy.
    """
    records = []
    for encoder in encoders:
        sheet = Sheet(DATA, SPLIT, "all", encoder.name, None)
        records.append(sheet.figure("params", float(encoder.num_parameters), n=1, unit="count"))
    for setting, runs in times.items():
        for encoder in encoders:
            mine = runs[encoder.name]
            note = "; ".join(filter(None, (encoder.shape, remark)))
            sheet = Sheet(DATA, SPLIT, subset(setting), encoder.name, None)
            p50, low, high = (1000 * seconds for seconds in (median(mine), min(mine), max(mine)))
            records.append(sheet.figure("latency_ms_p50", p50, low, high, len(mine), note, "ms"))
            records += [
                sheet.figure(
                    f"ratio:{peer}",
                    median(mine) / median(runs[peer]),
                    n=min(len(mine), len(runs[peer])),
                    unit="ratio",
                )
                for peer in peers
            ]
    return records


def subset(setting: Setting) -> str:
    """Return what records of a setting are of."""
    return f"batch_{setting[0]}_threads_{setting[1]}"


def bench_table(records: Sequence[Record]) -> str:
    """Return a table a setting: milliseconds, ratio to each peer, parameters, what was seen."""
    sizes = {r.method: r.value for r in records if r.metric == "params"}
    found = {(r.subset, r.method, r.metric): r for r in records}
    ratios = list(dict.fromkeys(r.metric for r in records if r.metric.startswith("ratio:")))
    width = max(map(len, sizes))
    columns = [(max(11, len(ratio) - 4), ratio) for ratio in ratios]
    lines = []
    for where in dict.fromkeys(r.subset for r in records if r.metric == "latency_ms_p50"):
        heading = " ".join(f"{'x ' + ratio[6:]:>{wide}}" for wide, ratio in columns)
        lines += ["", where.replace("_", " ")]
        lines.append(f"{'':{width}} {'ms':>9} {heading} {'params':>9} {'runs':>5}  of")
        for method, size in sizes.items():
            time = found[where, method, "latency_ms_p50"]
            cells = " ".join(
                f"{found[where, method, ratio].value or math.nan:>{wide}.3g}"
                for wide, ratio in columns
            )
            lines.append(
                f"{method:{width}} {time.value or math.nan:>9,.1f} {cells} "
                f"{(size or 0) / 1e6:>7.2f} M {time.n:>5}  {time.note.partition(';')[0]}"
            )
    return "\n".join(lines[1:])


def _check(names: Sequence[str], rounds: Mapping[int, int], threads: Sequence[int]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two encoders are called {twice[0]}: give each its own name")
    if not names:
        raise ValueError("nothing to measure: give an export, a student or a peer")
    for what, numbers in (
        ("batch size", rounds),
        ("rounds", rounds.values()),
        ("threads", threads),
    ):
        for number in numbers:
            if number < 1:
                raise ValueError(f"{what} {number}: give a positive number")
    cores = usable_cores()
    if max(threads) > cores:
        raise ValueError(
            f"threads {max(threads)}: this process may use {cores} cores, and more threads than "
            "cores wait for each other; give fewer"
        )


def usable_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def busy(load: float) -> str:
    """Return what to say of a machine with other work; "" when there is little.

    Several threads wait for each other spinning, and one that lost its core to other work made
    two threads 7 to 70 times slower than one here.

    Args:
        load: Load average before the bench began.
    """
    return "" if load < BUSY else f"machine busy, load {load:.1f} on {usable_cores()} cores"


def _measure_one(
    encoders: Sequence[Encoder], setting: Setting, rounds: int, budget: float, progress: _Progress
) -> dict[str, list[float]]:
    batch = setting[0]
    inputs = {encoder.name: encoder.inputs(batch) for encoder in encoders}
    times: dict[str, list[float]] = {encoder.name: [] for encoder in encoders}
    spent, at_once = dict.fromkeys(times, 0.0), dict.fromkeys(times, batch)
    for encoder in encoders:
        for _ in range(WARM_UPS):
            if spent[encoder.name] >= WARM_UP_SECONDS:
                break
            seconds = _run(encoder, inputs[encoder.name], batch)
            spent[encoder.name] += seconds
            progress.ran(encoder.name, setting, seconds, counted=False)
        if batch > CPU_BATCH_SIZE:
            in_slices = min(_run(encoder, inputs[encoder.name], CPU_BATCH_SIZE) for _ in range(2))
            spent[encoder.name] += 2 * in_slices
            if in_slices < seconds:
                at_once[encoder.name] = CPU_BATCH_SIZE
    for number in range(rounds):
        for encoder in encoders if number % 2 == 0 else reversed(encoders):
            mine = times[encoder.name]
            if len(mine) >= LEAST_RUNS and spent[encoder.name] >= budget:
                continue
            mine.append(_run(encoder, inputs[encoder.name], at_once[encoder.name]))
            spent[encoder.name] += mine[-1]
            progress.ran(encoder.name, setting, mine[-1], counted=True)
    return times


def _run(encoder: Encoder, inputs: tuple[torch.Tensor, ...], at_once: int) -> float:
    with torch.inference_mode():
        start = perf_counter()
        for part in zip(*(torch.split(tensor, at_once) for tensor in inputs), strict=True):
            encoder.run(*part)
        return perf_counter() - start


class _Progress:
    """Lines that say where the bench stands, at most one in ten seconds."""

    def __init__(
        self,
        names: Sequence[str],
        settings: Sequence[Setting],
        rounds: Mapping[int, int],
        budget: float,
        say: Callable[[str], None],
    ) -> None:
        self.names, self.settings, self.rounds = names, settings, rounds
        self.budget, self.say, self.told = budget, say, perf_counter()
        self.done: dict[tuple[str, Setting], int] = {}
        self.spent: dict[tuple[str, Setting], float] = {}
        self.last: dict[str, tuple[Setting, float]] = {}

    def ran(self, name: str, setting: Setting, seconds: float, *, counted: bool) -> None:
        """Note a run, and say so when the last line is long ago."""
        self.done[name, setting] = self.done.get((name, setting), 0) + counted
        self.spent[name, setting] = self.spent.get((name, setting), 0.0) + seconds
        self.last[name] = setting, seconds
        if perf_counter() - self.told < SECONDS_A_LINE:
            return
        self.told = perf_counter()
        what = (
            f"run {self.done[name, setting]} of {self.rounds[setting[0]]}" if counted else "warm-up"
        )
        left = self.seconds_left(setting)
        rest = "" if left is None else f", about {left // 60:.0f} min {left % 60:02.0f} s left"
        self.say(
            f"batch {setting[0]}, threads {setting[1]}, {name}: "
            f"{what}, {1000 * seconds:,.1f} ms{rest}"
        )

    def seconds_left(self, current: Setting) -> float | None:
        """Return an estimate, None while an encoder has not run at all.

        A setting to come is taken to cost in proportion to its batch and threads.
        """
        if len(self.last) < len(self.names):
            return None
        total = 0.0
        for setting in self.settings[self.settings.index(current) :]:
            rounds = self.rounds[setting[0]]
            for name in self.names:
                (batch, threads), seconds = self.last[name]
                seconds *= setting[0] / batch * threads / setting[1]
                done = self.done.get((name, setting), 0)
                spent = self.spent.get((name, setting), 0.0)
                if (name, setting) not in self.spent:
                    warm = min(WARM_UPS, math.ceil(WARM_UP_SECONDS / max(seconds, 1e-9)))
                    spent, total = warm * seconds, total + warm * seconds
                in_budget = math.ceil(max(0.0, self.budget - spent) / max(seconds, 1e-9))
                total += min(rounds - done, max(in_budget, LEAST_RUNS - done, 0)) * seconds
        return total
