"""A figure over the values of one setting, every seed shown."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from statistics import mean

import matplotlib
from matplotlib.figure import Figure

from keynet.evaluation.page import ACCENT, INK, LINE


def sweep_png(
    points: Mapping[float, Sequence[float]],
    others: Mapping[str, Sequence[float]],
    *,
    setting: str,
    figure: str,
) -> bytes:
    """Return the plot as PNG: seeds as dots, their means as a line.

    Args:
        points: Figures of the seeds by the setting's value.
        others: Figures of the seeds of what has no value, such as a learned one: level lines.
        setting: Label of the horizontal axis.
        figure: Label of the vertical axis.

    Raises:
        ValueError: There are no points.
    """
    if not points or not all(points.values()):
        raise ValueError("no points to draw; give figures for at least one value")
    buffer = io.BytesIO()
    with matplotlib.rc_context({"font.size": 9, "text.parse_math": False}):
        drawn = Figure(figsize=(5.2, 3.2), dpi=150, layout="constrained")
        axes = drawn.subplots()
        values = sorted(points)
        for value in values:
            axes.scatter([value] * len(points[value]), points[value], s=12, color=ACCENT, alpha=0.5)
        axes.plot(values, [mean(points[v]) for v in values], color=ACCENT, linewidth=1.5)
        for (name, figures), style in zip(others.items(), ("--", ":", "-."), strict=False):
            level = mean(figures)
            axes.axhline(level, color=INK, linewidth=0.9, linestyle=style, label=name)
        if others:
            axes.legend(frameon=False)
        axes.set_xlabel(setting)
        axes.set_ylabel(figure)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=LINE, linewidth=0.6)
        drawn.savefig(buffer, format="png", facecolor="white", metadata={"Software": None})
    return buffer.getvalue()
