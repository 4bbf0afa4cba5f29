"""What ``scripts.profile_data`` prints and writes: grids and records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from data.broken_lines import BrokenLines, shown_lines
from data.chat_log import Log
from data.profile import ORACLE, Figure
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.table import Cell, Grid, Row

ALL = "all"
DATA = "data"  # the method of figures that are no saving
NOTES = (
    "saved_requests, saved_tokens: answered before, if all is kept and nothing expires. exact: "
    "equal bytes, text and scope; oracle: a perfect key, equal group and scope.",
    "Shares in percent.",
)


def figures_grid(name: str, found: Mapping[str, Sequence[Figure]]) -> Grid:
    """Return a row a figure, a column a split."""
    cells: dict[str, dict[str, Cell]] = {}
    for split, figures in found.items():
        for figure in figures:
            row = f"{figure.cache} {figure.what}" if figure.cache else figure.what
            cells.setdefault(row, {})[split] = Cell(shown(figure))
    rows = (
        Row(
            row,
            "oracle" if row.startswith(ORACLE) else "baseline",
            tuple(of.get(s, Cell("-")) for s in found),
        )
        for row, of in cells.items()
    )
    return Grid(name, tuple((split,) for split in found), tuple(rows), NOTES, "figure")


def shown(figure: Figure) -> str:
    """Return a figure as printed."""
    if figure.value is None:
        return "-"
    return f"{100 * figure.value:.1f}" if figure.unit == "share" else f"{figure.value:,.0f}"


def figure_records(name: str, found: Mapping[str, Sequence[Figure]]) -> list[Record]:
    """Return a record a figure and split."""
    return [
        Sheet(name, split, "all", figure.cache or DATA, None).figure(
            figure.what, figure.value, n=figure.n, unit=figure.unit
        )
        for split, figures in found.items()
        for figure in figures
    ]


def broken_grid(name: str, lines: int, broken: BrokenLines, unread: Mapping[str, int]) -> Grid:
    """Return a row a reason; the fields that were not read are in the notes."""
    rows = [
        Row(reason, "baseline", (Cell(f"{len(numbers):,}"), Cell(shown_lines(numbers))))
        for reason, numbers in broken.by_reason().items()
    ]
    notes = [f"{len(broken):,} of {lines:,} lines are broken; report.json names them all."]
    if unread:
        fields = ", ".join(f"{field} ({count:,})" for field, count in unread.items())
        notes.append(f"Fields that are not read, in how many lines: {fields}.")
    return Grid(
        f"{name}: broken lines", (("lines",), ("numbers",)), tuple(rows), tuple(notes), "reason"
    )


def doubt_grid(name: str, log: Log) -> Grid:
    """Return what the rules for groups leave open."""
    doubt, n = log.doubt, len(log.requests)
    rows = (
        ("requests in doubt", f"{doubt.requests:,}", f"{100 * doubt.requests / n:.1f} %"),
        ("pairs in doubt", f"{doubt.pairs:,}", ""),
        ("pairs judged or labelled", f"{doubt.judged:,}", ""),
        ("of these, equivalent", f"{doubt.joined:,}", ""),
        (
            "answered otherwise than the same request",
            f"{doubt.answered_otherwise:,}",
            f"{100 * doubt.answered_otherwise / n:.1f} %",
        ),
        ("contradictions", f"{len(doubt.contradictions):,}", ""),
    )
    notes = (
        "In doubt: different questions about one picture, or none, with the same answer, which "
        "neither a judge nor a label decides (data.source.judge, data.source.pairs).",
        *doubt.contradictions,
    )
    return Grid(
        f"{name}: doubt about groups",
        (("count",), ("of the requests",)),
        tuple(Row(label, "baseline", tuple(map(Cell, cells))) for label, *cells in rows),
        notes,
        "figure",
    )


def broken_records(name: str, lines: int, broken: BrokenLines) -> list[Record]:
    """Return lines, and broken ones by reason with all their numbers."""
    sheet = Sheet(name, ALL, "all", DATA, None)
    return [
        sheet.figure("lines", lines, n=lines, unit="lines"),
        sheet.share("broken_lines", len(broken), lines),
        *(
            Sheet(name, ALL, f"broken:{reason}", DATA, None).figure(
                "broken_lines",
                len(numbers),
                n=lines,
                unit="lines",
                note=f"lines {', '.join(map(str, numbers))}",
            )
            for reason, numbers in broken.by_reason().items()
        ),
    ]


def doubt_records(name: str, log: Log) -> list[Record]:
    """Return what the rules for groups leave open."""
    sheet = Sheet(name, ALL, "all", DATA, None)
    doubt, n = log.doubt, len(log.requests)
    return [
        sheet.share("requests_in_doubt", doubt.requests, n),
        sheet.share("answered_otherwise", doubt.answered_otherwise, n),
        sheet.figure("pairs_in_doubt", doubt.pairs, n=n, unit="pairs"),
        sheet.figure("pairs_judged", doubt.judged, n=n, unit="pairs"),
        sheet.figure("pairs_equivalent", doubt.joined, n=n, unit="pairs"),
        sheet.figure(
            "contradictions", len(doubt.contradictions), n=n, unit="contradictions",
            note="; ".join(doubt.contradictions),
        ),
    ]  # fmt: skip
