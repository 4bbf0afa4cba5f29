"""A grid as a table in the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from keynet.evaluation.table import Grid

WIDTH = 112  # where no terminal says it


def print_grid(grid: Grid, console: Console | None = None) -> None:
    """Print one grid, a row a method, and its notes."""
    console = console or Console()
    if not console.is_terminal:  # rich takes a pipe for 80 columns wide
        console.width = max(console.width, WIDTH)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=grid.title)
    table.add_column(f"\n{grid.first}", no_wrap=True)
    for heading in grid.columns:
        table.add_column("\n".join(heading), justify="right")
    for row in grid.rows:
        table.add_row(row.label, *map(str, row.cells))
    console.print(table)
    for note in grid.notes:
        console.print(note, markup=False, highlight=False)
