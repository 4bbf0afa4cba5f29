"""What a command of the replay laboratory found: records, tables, pictures, mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from keynet.evaluation.page import Pair
from keynet.evaluation.records import Record
from keynet.evaluation.table import Figures, Grid, Row

Column = tuple[tuple[str, ...], str, str]  # heading line by line, subset, metric


@dataclass
class Findings:
    """What was found.

    Args:
        records: All figures.
        grids: Tables, in the order in which they are shown.
        plots: Title and figure, the same.
        pairs: Worst false hits, worst first.
    """

    records: list[Record] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    plots: list[tuple[str, Figure]] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Take what another command found."""
        self.records += other.records
        self.grids += other.grids
        self.plots += other.plots
        self.pairs += other.pairs


def method_grid(
    records: Sequence[Record], title: str, columns: Sequence[Column], notes: Sequence[str] = ()
) -> Grid:
    """Return one row a method, in the order of the records; - where nothing was measured."""
    figures = Figures(records)
    ((data, split),) = figures.slices()
    rows = []
    for method in dict.fromkeys((r.method, r.bits) for r in records):
        cells = (figures.cell((data, split, s, method), metric) for _, s, metric in columns)
        kind = "oracle" if method[0] == "oracle" else "baseline"
        rows.append(Row(method[0], kind, tuple(cells)))
    return Grid(title, tuple(heading for heading, _, _ in columns), tuple(rows), tuple(notes))
