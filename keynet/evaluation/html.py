"""report.html: the same records as a page to read, with curves and the worst mistakes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keynet.evaluation.page import (
    ACCENT,
    INK,
    LINE,
    MARKS,
    MISS,
    MUTED,
    STYLES,
    Pair,
    inline_svg,
    plot_settings,
    write_page,
)
from keynet.evaluation.records import Record
from keynet.evaluation.report import write_whole
from keynet.evaluation.table import all_grids, kind_of, label, sorted_methods

KIND_PREFIX = "false_hits:"  # metric of the false hits of one kind
POINTS = 400  # of a curve drawn; more than the plot has pixels to show
AXES = {  # curves known to a report: title, x label, y label
    "p_chr": (
        "Precision over the share of queries served",
        "share of queries served",
        "precision of the served",
    ),
    "closed_loop": ("Hits over requests, closed loop", "requests", "hit rate so far"),
}


@dataclass(frozen=True)
class Curve:
    """One method's line in a plot; ``x`` and ``y`` [P], points that are not finite are left out."""

    method: str
    x: np.ndarray
    y: np.ndarray


def write_html(
    path: Path,
    records: Sequence[Record],
    curves: Mapping[str, Sequence[Curve]],
    pictures: Sequence[Pair],
    attribution: str,
    command: str,
) -> None:
    """Write the report as one self-contained page, whole or not at all.

    Args:
        records: All figures; tables and bars are drawn from them.
        curves: Lines for each plot, under "p_chr" and "closed_loop".
        pictures: Worst false hits and misses, worst first.
        attribution: Whose art is shown, and its licence; a line each.
        command: The command line that measured.

    Raises:
        OSError: When the file cannot be written.
        ValueError: When a plot is not one of ``AXES``.
    """
    with plot_settings():
        plots = [*(_curve_plot(*item) for item in curves.items()), *_kind_plots(records)]
    write_page(
        path,
        ", ".join(dict.fromkeys(r.data for r in records)) or "no records",
        all_grids(records),
        ["<h2>Curves and mistakes</h2>", *plots] if plots else [],
        {
            "Worst false hits": [p for p in pictures if p.kind != MISS],
            "Worst misses": [p for p in pictures if p.kind == MISS],
        },
        attribution.splitlines(),
        command,
        records,
    )


def save_curve_png(path: Path, curves: Sequence[Curve], plot: str = "p_chr") -> None:
    """Save one plot as PNG on white (for a README); ``plot`` is a key of ``AXES``."""
    buffer = io.BytesIO()
    with plot_settings():
        _curve_figure(plot, curves).savefig(buffer, format="png", facecolor="white")
    write_whole(path, buffer.getvalue())


def _curve_plot(plot: str, curves: Sequence[Curve]) -> str:
    return inline_svg(_curve_figure(plot, curves), AXES[plot][0], plot) if curves else ""


def _curve_figure(plot: str, curves: Sequence[Curve]) -> Figure:
    if plot not in AXES:
        raise ValueError(f"no plot is called {plot!r}; known are {', '.join(AXES)}")
    title, x_label, y_label = AXES[plot]
    figure = Figure(figsize=(8.4, 3.9), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    seen = {"trained": 0, "baseline": 0, "oracle": 0}
    for curve in curves:
        kind = kind_of(curve.method.split(" ")[0])
        index = seen[kind]
        seen[kind] += 1
        x, y = _thinned(curve)
        look: dict[str, Any] = {"color": INK, "linestyle": ":", "linewidth": 1.4}
        if kind == "trained":
            style = STYLES[index % len(STYLES)]
            look = {"color": ACCENT, "linestyle": style, "linewidth": 1.8, "zorder": 3}
        elif kind == "baseline":
            mark = MARKS[index % len(MARKS)]
            look = {"color": MUTED, "linewidth": 1.0, "marker": mark, "markersize": 3.5}
            look["markevery"] = (0.03 + 0.02 * index, 0.13)  # marks of equal curves stay apart
        axes.plot(x, y, label=curve.method, **look)
    _plain(axes)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.margins(x=0.01)
    axes.set_ylim(min(axes.get_ylim()[0], 0.98), 1.01)
    axes.title.set_horizontalalignment("left")
    axes.title.set_position((0, 1))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, labelcolor=INK)
    return figure


def _thinned(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(curve.x, float), np.asarray(curve.y, float)
    if x.shape != y.shape:
        raise ValueError(f"curve {curve.method!r} has {x.shape} x and {y.shape} y; give one y an x")
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    keep = np.unique(np.linspace(0, len(x) - 1, min(POINTS, len(x))).astype(int))
    return x[keep], y[keep]


def _kind_plots(records: Sequence[Record]) -> list[str]:
    """Return bars of false hits by kind for each data set and split, a panel a method."""
    shown = [r for r in records if r.metric.startswith(KIND_PREFIX) and r.value is not None]
    plots: list[str] = []
    for data, split, subset in dict.fromkeys((r.data, r.split, r.subset) for r in shown):
        mine = [r for r in shown if (r.data, r.split, r.subset) == (data, split, subset)]
        kinds = list(dict.fromkeys(r.metric.removeprefix(KIND_PREFIX) for r in mine))
        methods = sorted_methods(mine)
        columns = min(4, len(methods))
        rows = -(-len(methods) // columns)
        size = (8.4, 0.5 + rows * (0.45 + 0.2 * len(kinds)))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, method in zip(panels, methods, strict=False):
            values = {r.metric: r for r in mine if (r.method, r.bits) == method}
            found = [values.get(KIND_PREFIX + kind) for kind in kinds]
            color = ACCENT if kind_of(method[0]) == "trained" else MUTED
            bars = axes.barh(
                range(len(kinds)), [r.value if r else 0.0 for r in found], 0.6, color=color
            )
            axes.bar_label(bars, [_bar_text(r) for r in found], padding=2, color=INK, fontsize=8)
            axes.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
            _plain(axes)
            axes.grid(visible=False)
            axes.set_title(label(method), loc="left", fontsize=9)
            axes.set_xticks([])
            axes.margins(x=0.3)
        panels[0].invert_yaxis()
        for axes in panels[len(methods) :]:
            axes.set_axis_off()
        title = f"False hits by kind: {data}, {split}" + ("" if subset == "all" else f", {subset}")
        plots.append(f"<h3>{escape(title)}</h3>" + inline_svg(figure, title, f"kinds{len(plots)}"))
    return plots


def _bar_text(record: Record | None) -> str:
    if record is None or record.value is None:
        return "n/a"
    return f"{100 * record.value:.0f} %" if record.unit == "share" else f"{record.value:,.0f}"


def _plain(axes: Axes) -> None:
    axes.patch.set_alpha(0)
    axes.grid(visible=True, color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
    axes.tick_params(color=LINE, labelcolor=INK)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(INK)
