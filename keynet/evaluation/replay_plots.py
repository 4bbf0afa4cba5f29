"""The pictures of a replay's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from keynet.evaluation.page import ACCENT, INK, LINE, MARKS, MUTED, STYLES
from keynet.evaluation.replay_policies import Replayed
from keynet.replay.closed_loop import HIT
from keynet.replay.cold_start import ColdStart, Windows
from keynet.replay.curve_fit import CurveFit
from keynet.replay.match_entropy import ONSET, Matches, by_entropy
from keynet.replay.tally import Tally, load, thirds

LOAD_WINDOW = 10.0  # seconds
LOADS = ("low", "middle", "high")


def hits_plot(outcomes: Mapping[str, Sequence[np.ndarray]], best: str) -> Figure:
    """Draw correct hits so far over requests, the mean of several traces, a line a method.

    Args:
        outcomes: By method, int8 [V] of each trace.
        best: The method that is drawn in the accent colour.
    """
    figure = Figure(figsize=(8.4, 3.9), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for number, (method, found) in enumerate(outcomes.items()):
        length = min(len(one) for one in found)
        right = np.mean([np.cumsum(one[:length] == HIT) for one in found], axis=0)
        at = np.unique(np.linspace(0, length - 1, min(400, length)).astype(int))
        look: dict[str, Any] = {
            "color": MUTED,
            "linewidth": 1.0,
            "marker": MARKS[number % len(MARKS)],
            "markersize": 3.5,
        }
        if method == best:
            look = {"color": ACCENT, "linewidth": 1.8}
        elif method == "oracle":
            look = {"color": INK, "linestyle": ":", "linewidth": 1.4}
        start = (0.03 + 0.015 * number, 0.13)
        axes.plot(at + 1, right[at] / (at + 1), label=method, markevery=start, **look)
    _finish(axes, "requests", "correct hits so far, share")
    axes.set_ylim(-0.01, 1.01)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelcolor=INK)
    return figure


def cold_start_plot(found: Mapping[str, tuple[Windows, ColdStart]]) -> Figure:
    """Draw hit rates over time with their fitted curves, the first method in accent."""
    figure = Figure(figsize=(8.4, 3.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for number, (name, (windows, fit)) in enumerate(found.items()):
        color = ACCENT if number == 0 else MUTED
        mark = MARKS[number % len(MARKS)]
        axes.plot(windows.time, windows.rate, mark, color=color, markersize=3.5, alpha=0.6)
        time = np.linspace(0, windows.time[-1], 200)
        style = STYLES[number % len(STYLES)]
        axes.plot(time, fit.at(time), color=color, linestyle=style, linewidth=1.6, label=name)
    _finish(axes, "seconds since the first request", "correct hits, share")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelcolor=INK)
    return figure


def entropy_plot(found: Matches, fixed: CurveFit, free: CurveFit) -> Figure:
    """Draw the share of wrong matches over their entropy beside both fitted curves."""
    figure = Figure(figsize=(6.4, 3.4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    entropy, wrong, _ = by_entropy(found)
    axes.plot(entropy, wrong, "o", color=ACCENT, markersize=4, label="measured")
    grid = np.linspace(found.entropy.min(), found.entropy.max(), 200)
    for fit, onset, style in ((fixed, ONSET, "--"), (free, float(free.values[1]), "-")):
        curve = 1 - np.exp(-fit.values[0] * np.maximum(0, grid - onset))
        name = f"a = {fit.values[0]:.2f}, from {onset:.2f} nats"
        axes.plot(grid, curve, color=INK, linestyle=style, linewidth=1.2, label=name)
    axes.axhline(float(found.wrong.mean()), color=MUTED, linewidth=1.0, label="constant")
    _finish(axes, "match entropy, nats", "wrong matches, share")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelcolor=INK)
    return figure


def root_cause_plot(replays: Mapping[str, Sequence[Replayed]], modalities: np.ndarray) -> Figure:
    """Draw hit rate, lookup latency and bytes moved by load, modality and policy (D2).

    Args:
        replays: By policy, of traces with several modalities.
        modalities: str [N], of the pool's requests.
    """
    every = [one for found in replays.values() for one in found]
    names = sorted(set(modalities[np.concatenate([one.trace.request for one in every])].tolist()))
    columns: list[tuple[str, dict[str, list[Tally]]]] = [
        (
            "load",
            {
                name: [o.tally(thirds(load(o.trace, LOAD_WINDOW)) == at) for o in every]
                for at, name in enumerate(LOADS)
            },
        ),
        (
            "modality",
            {n: [o.tally(modalities[o.trace.request] == n) for o in every] for n in names},
        ),
        ("policy", {name: [o.tally() for o in found] for name, found in replays.items()}),
    ]
    figure = Figure(figsize=(9.6, 6.0), dpi=150, layout="constrained")
    widths = [max(2.2, len(bars)) for _, bars in columns]
    panels = figure.subplots(3, 3, sharey="row", width_ratios=widths)
    for column, (what, bars) in enumerate(columns):
        labels = [name.replace("_", " ") for name in bars]
        for row, axes in enumerate(panels[:, column]):
            values = [_figure(row, tallies) for tallies in bars.values()]
            places = range(len(values))
            if row == 1:
                axes.set_yscale("log")  # p99 is many times p50
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # not as TeX
                axes.yaxis.set_minor_formatter(NullFormatter())
                axes.tick_params(axis="y", which="minor", length=0)
                axes.bar(places, [high for _, high in values], 0.62, color=LINE)
            axes.bar(places, [value for value, _ in values], 0.62, color=ACCENT)
            _finish(axes, what if row == 2 else "", "")
            axes.grid(visible=False, axis="x")
            axes.set_xticks(places, labels if row == 2 else [""] * len(labels), fontsize=8)
            axes.tick_params(axis="x", rotation=60 if column == 2 else 30, length=0)
    for axes, said in zip(
        panels[:, 0], ("correct hits, share", "lookup ms, p50 and p99", "bytes moved, share"),
        strict=True,
    ):  # fmt: skip
        axes.set_ylabel(said)
        axes.yaxis.label.set_color(INK)
    return figure


def _figure(row: int, tallies: Sequence[Tally]) -> tuple[float, float]:
    """Return a bar's height, and that of the bar behind it."""
    if row == 0:
        value = sum(t.hits for t in tallies) / max(1, sum(t.visits for t in tallies))
        return value, value
    if row == 1:
        mean = [
            float(np.mean([getattr(t, f"lookup_{p}") for t in tallies])) for p in ("p50", "p99")
        ]
        return 1e3 * mean[0], 1e3 * mean[1]
    value = sum(t.bytes_moved for t in tallies) / max(1, sum(t.bytes_asked for t in tallies))
    return value, value


def _finish(axes: Axes, x_label: str, y_label: str) -> None:
    axes.patch.set_alpha(0)
    axes.grid(visible=True, color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(LINE)
    axes.tick_params(color=LINE, labelcolor=INK)
    axes.set(xlabel=x_label, ylabel=y_label)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(INK)
