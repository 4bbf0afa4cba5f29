"""What a sweep found: its trials as a table, plots and report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from keynet.evaluation.grid_table import print_grid
from keynet.evaluation.page import INK, LINE, inline_svg, plot_settings, write_page
from keynet.evaluation.records import Sheet
from keynet.evaluation.report import write_report
from keynet.evaluation.table import Cell, Grid, Row

FOLDER, WHY = "folder", "why"  # what is kept of a trial: its directory, and why it failed


def write_trials(out: Path, tried: Sequence[FrozenTrial], metric: str, command: str) -> None:
    """Print the trials, and write report.json and report.html.

    Args:
        out: The folder of the sweep.
        tried: Trials; those that were cut off and went on as others are left out.
        metric: What was sought.
        command: The command line of the sweep.

    Raises:
        OSError: When a file cannot be written.
    """
    ended = [
        trial for trial in tried if trial.state == TrialState.COMPLETE or WHY in trial.user_attrs
    ]
    grid = trial_grid(ended, metric)
    print_grid(grid)
    records = [
        Sheet("sweep", "chosen on", trial.user_attrs[FOLDER], _chosen(trial), None).figure(
            metric, trial.value, n=1, unit="figure", note=trial.user_attrs.get(WHY, "")
        )
        for trial in ended
    ]
    write_report(out / "report.json", records, command)
    with plot_settings():
        plots = [inline_svg(trial_plot(ended, metric), "trials", "trials")]
    write_page(out / "report.html", "Sweep", [grid], plots, {}, (), command, records)


def trial_grid(ended: Sequence[FrozenTrial], metric: str) -> Grid:
    """Return the trials as a table; those that ended well first, then those that failed."""
    names = sorted({name for trial in ended for name in trial.params})
    rows = tuple(
        Row(
            f"{trial.user_attrs[FOLDER]}",
            "trained",
            (
                Cell("failed" if trial.value is None else f"{trial.value:.4g}"),
                *(Cell(_short(trial.params.get(name))) for name in names),
                Cell(_minutes(trial)),
            ),
        )
        for trial in sorted(ended, key=lambda one: (one.value is None, one.number))
    )
    notes = tuple(
        f"{trial.user_attrs[FOLDER]} failed: {trial.user_attrs[WHY]}"
        for trial in ended
        if trial.value is None
    )
    columns = ((metric,), *((*name.rsplit(".", 1),) for name in names), ("minutes",))
    deepest = max(map(len, columns))
    padded = tuple(("",) * (deepest - len(column)) + column for column in columns)
    return Grid("trials", padded, rows, notes, "trial")


def trial_plot(ended: Sequence[FrozenTrial], metric: str) -> Figure:
    """Draw what was reached over each option, a dot a trial."""
    well = [trial for trial in ended if trial.value is not None]
    names = sorted({name for trial in well for name in trial.params})
    figure = Figure(figsize=(2.9 * max(1, len(names)), 2.9), dpi=150, layout="constrained")
    for number, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), number + 1, label=name)
        of = [trial for trial in well if name in trial.params]
        kind = of[0].distributions[name]
        if isinstance(kind, CategoricalDistribution):
            places = [kind.choices.index(trial.params[name]) for trial in of]
            axes.set_xticks(range(len(kind.choices)), [_short(one) for one in kind.choices])
        else:
            places = [trial.params[name] for trial in of]
        if isinstance(kind, FloatDistribution | IntDistribution) and kind.log:
            axes.set_xscale("log")
            marks = [kind.low, math.sqrt(kind.low * kind.high), kind.high]
            axes.set_xticks(marks, [f"{mark:.2g}" for mark in marks])
            axes.minorticks_off()
            axes.set_xlim(kind.low / 1.1, kind.high * 1.1)
        axes.scatter(places, [float(trial.value or 0) for trial in of], s=14, color=INK)
        axes.set_xlabel(name)
        axes.set_ylabel(metric if number == 0 else "")
        axes.grid(color=LINE, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure


def _chosen(trial: FrozenTrial) -> str:
    return " ".join(f"{name}={value}" for name, value in trial.params.items())


def _minutes(trial: FrozenTrial) -> str:
    return "" if trial.duration is None else f"{trial.duration.total_seconds() / 60:.1f}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
