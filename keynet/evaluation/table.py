"""The tables of a report, drawn from its records alone: terminal, Markdown, and grids for HTML."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from keynet.evaluation.captions import IMAGE_TO_TEXT, TEXT_TO_IMAGE
from keynet.evaluation.left_out import left_out_lines
from keynet.evaluation.records import Record
from keynet.evaluation.savings import savings_lines

WIDTH = 100
BASELINES = ("exact", "text_only", "image_only", "perceptual_hash", "concat_l2")
ORACLE = "oracle"
KINDS = ("trained", "baseline", "oracle")
LOOP = "single_pass"
NOTES_SHOWN = 4
SUBSETS_PER_GRID = 4  # what fits into WIDTH beside the methods

Method = tuple[str, int | None]  # name and bits; None is the float key
Where = tuple[str, str, str, Method]  # data, split, subset, method

HEADLINE = (  # (group, what, at): (subset, metric)
    (("store", "hits", "0.1 %"), ("all", "hit_rate_at_0.001")),
    (("store", "hits", "1 %"), ("all", "hit_rate_at_0.01")),
    (("store", "hits", "5 %"), ("all", "hit_rate_at_0.05")),
    (("store", "false", "1 %"), ("all", "false_hit_rate_at_0.01")),
    (("store", "P-CHR", "AUC"), ("all", "p_chr_auc")),
    (("loop", "hits", "1 %"), (LOOP, "replay_hit_rate_at_0.01")),
    (("loop", "false", "1 %"), (LOOP, "replay_false_hit_rate_at_0.01")),
    (("loop", "of", "oracle"), (LOOP, "hits_of_oracle")),
    (("loop", "first", "1,000"), (LOOP, "hits_after_1000")),
)
LEGEND = (
    "Shares in percent. store: independent queries on a fixed store; loop: one closed-loop pass; "
    "0.1, 1 and 5 %: false-hit budgets; false: false hits realised among the served; !: budget "
    "broken; P-CHR AUC: area under precision over the share served; -: not measured."
)
REALISED = {  # a hit rate counts only beside the false hits that it cost
    "hit_rate": "false_hit_rate",
    "false_hit_rate": "false_hit_rate",
    "replay_hit_rate": "replay_false_hit_rate",
    "replay_false_hit_rate": "replay_false_hit_rate",
}
SERVICE = (
    (("bits", "kept"), "consistency_bits"),
    (("codes", "kept"), "consistency_codes"),
    (("p50", "ms"), "latency_ms_p50"),
    (("p99", "ms"), "latency_ms_p99"),
    (("params",), "params"),
)
CAPTIONS = (
    (("text to", "image", "recall@1"), (TEXT_TO_IMAGE, "recall_at_1")),
    (("text to", "image", "recall@10"), (TEXT_TO_IMAGE, "recall_at_10")),
    (("image to", "text", "recall@1"), (IMAGE_TO_TEXT, "recall_at_1")),
    (("image to", "text", "recall@10"), (IMAGE_TO_TEXT, "recall_at_10")),
)
CAPTIONS_BESIDE = (  # another method
    (("retention", "@10"), "retention_at_10"),
    (("overlap", "@10"), "overlap_at_10"),
    (("gain", "@10"), "recall_at_10_gain"),
)
CAPTIONS_LEGEND = (
    "Shares in percent. recall@k: the caption's photograph, or one of the photograph's captions, "
    "is among the first k of the split."
)
BESIDE_LEGEND = (
    "Text to image, in percent. retention: recall over the other's; overlap: of the ten "
    "photographs that both name for a caption; gain: recall less the other's, in points."
)


@dataclass(frozen=True)
class Cell:
    """One figure as printed; ``over`` marks a false-hit budget broken, ``hint`` its interval."""

    text: str
    over: bool = False
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.text}!" if self.over else self.text


@dataclass(frozen=True)
class Row:
    """One line of a grid; ``kind`` is "trained", "baseline" or "oracle"."""

    label: str
    kind: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Grid:
    """A table ready to print; each column heading is given line by line, ``first`` whole."""

    title: str
    columns: tuple[tuple[str, ...], ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    first: str = "method"


class Figures:
    """Records by their key.

    Raises:
        ValueError: When two records name the same figure and differ in value.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.by_key: dict[tuple[Where, str], Record] = {}
        for r in records:
            where = (r.data, r.split, r.subset, (r.method, r.bits))
            known = self.by_key.setdefault((where, r.metric), r)
            if known.value != r.value and not (_missing(known) and _missing(r)):
                raise ValueError(
                    f"two records of one figure: {r.metric} of {label((r.method, r.bits))} on "
                    f"{r.data}/{r.split}/{r.subset} is {known.value} and {r.value}; keep one"
                )

    def slices(self) -> list[tuple[str, str]]:
        """Return each (data, split), in the order of the records."""
        return list(dict.fromkeys((r.data, r.split) for r in self.by_key.values()))

    def of(self, data: str, split: str) -> list[Record]:
        """Return the records of one data set and split."""
        return [r for r in self.by_key.values() if (r.data, r.split) == (data, split)]

    def cell(self, where: Where, metric: str) -> Cell:
        """Return a figure as printed, flagged where its false-hit budget is broken."""
        record = self.by_key.get((where, metric))
        if record is None:
            return Cell("-")
        if _missing(record):
            return Cell("n/a", hint=record.note)
        return Cell(_number(record, record.value), self._over(where, metric), _interval(record))

    def _over(self, where: Where, metric: str) -> bool:
        name, _, budget = metric.rpartition("_at_")
        if name not in REALISED:
            return False
        realised = self.by_key.get((where, f"{REALISED[name]}_at_{budget}"))
        return realised is not None and (realised.value or 0.0) > float(budget)


def terminal_table(records: Sequence[Record], width: int = WIDTH) -> str:
    """Return all tables as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(_rendered(records))
    return capture.get()


def print_table(records: Sequence[Record], console: Console | None = None) -> None:
    """Print all tables, in colour on a terminal; a pipe gets the full width."""
    console = console or Console()
    if not console.is_terminal:  # rich takes a pipe for 80 columns wide
        console.width = max(console.width, WIDTH)
    console.print(_rendered(records))


def all_grids(records: Sequence[Record]) -> list[Grid]:
    """Return the grids of each data set and split, in the order of ``BUILDERS``."""
    figures = Figures(records)
    return [
        grid for where in figures.slices() for build in BUILDERS for grid in build(figures, *where)
    ]


def headline_grids(figures: Figures, data: str, split: str) -> list[Grid]:
    """Return the headline grid, a row a method; none where nothing of it was measured."""
    columns = tuple(heading for heading, _ in HEADLINE)
    wanted = {source for _, source in HEADLINE}
    shown = [r for r in figures.of(data, split) if (r.subset, r.metric) in wanted]
    rows = [
        _row(method, (figures.cell((data, split, s, method), m) for _, (s, m) in HEADLINE))
        for method in sorted_methods(shown)
    ]
    if not rows:
        return []
    trained = (r for r in figures.of(data, split) if kind_of(r.method) == "trained")
    told = left_out_lines(r for r in figures.by_key.values() if r.data == data)
    notes = (LEGEND, *_notes(shown), *told, *savings_lines(trained))
    return [Grid(f"{data}, {split}", columns, tuple(rows), notes)]


def subset_grids(figures: Figures, data: str, split: str) -> list[Grid]:
    """Return hits and realised false hits at 1 % for each subset, a few subsets a grid."""
    shown = [
        r
        for r in figures.of(data, split)
        if r.metric in ("hit_rate_at_0.01", "replay_hit_rate_at_0.01")
        and (r.subset, r.metric) not in {source for _, source in HEADLINE}
    ]
    sources = list(dict.fromkeys((r.subset, _prefix(r)) for r in shown))
    grids = []
    for start in range(0, len(sources), SUBSETS_PER_GRID):
        part = sources[start : start + SUBSETS_PER_GRID]
        columns = tuple(("loop" if p else "store", *s.split(":"), "hits / false") for s, p in part)
        mine = [r for r in shown if (r.subset, _prefix(r)) in part]
        rows = [
            _row(m, (_pair(figures, (data, split, s, m), p) for s, p in part))
            for m in sorted_methods(mine)
        ]
        grids.append(Grid(f"{data}, {split}: subsets, at 1 %", columns, tuple(rows), _notes(mine)))
    return grids


def caption_grids(figures: Figures, data: str, split: str) -> list[Grid]:
    """Return retrieval of captioned photographs, a row a method."""
    wanted = {source for _, source in CAPTIONS}
    shown = [r for r in figures.of(data, split) if (r.subset, r.metric) in wanted]
    rows = [
        _row(method, (figures.cell((data, split, s, method), m) for _, (s, m) in CAPTIONS))
        for method in sorted_methods(shown)
    ]
    columns = tuple(heading for heading, _ in CAPTIONS)
    title = f"{data}, {split}: captioned photographs"
    return [Grid(title, columns, tuple(rows), (CAPTIONS_LEGEND, *_notes(shown)))] if rows else []


def beside_grids(figures: Figures, data: str, split: str) -> list[Grid]:
    """Return the same beside other methods, a row a method and other."""
    start, wanted = f"{TEXT_TO_IMAGE}:", {metric for _, metric in CAPTIONS_BESIDE}
    here = figures.of(data, split)
    shown = [r for r in here if r.subset.startswith(start) and r.metric in wanted]
    rows = []
    for method in sorted_methods(shown):
        for subset in dict.fromkeys(r.subset for r in shown if (r.method, r.bits) == method):
            where = (data, split, subset, method)
            cells = (figures.cell(where, metric) for _, metric in CAPTIONS_BESIDE)
            rows.append(_row(method, (Cell(subset.removeprefix(start)), *cells)))
    columns = (("other",), *(heading for heading, _ in CAPTIONS_BESIDE))
    title = f"{data}, {split}: captioned photographs, beside another method"
    return [Grid(title, columns, tuple(rows), (BESIDE_LEGEND, *_notes(shown)))] if rows else []


def service_grids(figures: Figures, data: str, split: str) -> list[Grid]:
    """Return consistency, latency and ratios to peers, a row a method and subset."""
    here = figures.of(data, split)
    ratios = dict.fromkeys(r.metric for r in here if r.metric.startswith("ratio:"))
    metrics = [*SERVICE, *((("x", name.removeprefix("ratio:")), name) for name in ratios)]
    measured = {r.metric for r in here}
    metrics = [(heading, metric) for heading, metric in metrics if metric in measured]
    names = {metric for _, metric in metrics}
    shown = [r for r in here if r.metric in names]
    rows = []
    for method in sorted_methods(shown):
        mine = [r for r in shown if (r.method, r.bits) == method]
        for subset in dict.fromkeys(r.subset for r in mine):
            cells = (figures.cell((data, split, subset, method), metric) for _, metric in metrics)
            row = _row(method, (Cell(subset), *cells))
            rows.append(row)
    columns = (("of",), *(heading for heading, _ in metrics))
    title = f"{data}, {split}: consistency and latency"
    return [Grid(title, columns, tuple(rows), _notes(shown))] if rows else []


BUILDERS = (headline_grids, subset_grids, caption_grids, beside_grids, service_grids)


def sorted_methods(records: Iterable[Record]) -> list[Method]:
    """Return each method once: trained (float key, then long codes first), baselines, oracle."""
    methods = list(dict.fromkeys((r.method, r.bits) for r in records))
    names = list(dict.fromkeys(name for name, _ in methods))

    def rank(method: Method) -> tuple[int, int, float]:
        name, bits = method
        order = BASELINES.index(name) if name in BASELINES else len(BASELINES) + names.index(name)
        length = -math.inf if bits is None else -bits  # the float key first, then long codes
        return KINDS.index(kind_of(name)), order, length

    return sorted(methods, key=rank)


def kind_of(method: str) -> str:
    """Return "trained", "baseline" or "oracle"; what is no known baseline was trained."""
    if method == ORACLE:
        return "oracle"
    known = method in BASELINES or method.startswith("teacher:")
    return "baseline" if known else "trained"


def label(method: Method) -> str:
    """Return how a method is called in tables and plots."""
    name, bits = method
    return name if bits is None else f"{name} {bits} bit"


def _row(method: Method, cells: Iterable[Cell]) -> Row:
    return Row(label(method), kind_of(method[0]), tuple(cells))


def _pair(figures: Figures, where: Where, prefix: str) -> Cell:
    hits = figures.cell(where, f"{prefix}hit_rate_at_0.01")
    false = figures.cell(where, f"{prefix}false_hit_rate_at_0.01")
    if hits.text in ("n/a", "-"):
        return hits
    return Cell(f"{hits.text} / {false.text}", false.over, hits.hint)


def _prefix(record: Record) -> str:
    return record.metric.removesuffix("hit_rate_at_0.01")  # "" or "replay_"


def _missing(record: Record) -> bool:
    return record.value is None or record.value != record.value


def _number(record: Record, value: float | None) -> str:
    if value is None:
        return "n/a"
    if record.metric.startswith("ratio:"):
        return f"{value:.3g}"
    if record.metric.startswith(("p_chr", "latency")):
        return f"{value:.3f}"
    if record.metric == "params":
        return f"{value / 1e6:.2f} M"
    if record.metric.endswith("_gain"):
        return f"{100 * value:+.1f}"
    if record.unit == "share":
        fine = "false" in record.metric or "consistency" in record.metric
        return f"{100 * value:.{2 if fine else 1}f}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3g}"


def _interval(record: Record) -> str:
    if record.low is None or record.high is None:
        return f"n = {record.n:,}"
    low, high = _number(record, record.low), _number(record, record.high)
    return f"{low} to {high}, n = {record.n:,}"


def _notes(records: Iterable[Record]) -> tuple[str, ...]:
    """Why figures are n/a: the commonest reasons; the report has each with its figure."""
    reasons = Counter(r.note for r in records if _missing(r) and r.note)
    notes = [f"n/a ({count}): {reason}" for reason, count in reasons.most_common(NOTES_SHOWN)]
    more = len(reasons) - len(notes)
    return (*notes, f"{more} other reasons for n/a: see report.json") if more else tuple(notes)


def _rendered(records: Sequence[Record]) -> Group:
    grids = all_grids(records)
    return Group(*map(_rich, grids)) if grids else Group(Text("no figures measured"))


def _rich(grid: Grid) -> Group:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=None)
    longest = max(len(word) for row in grid.rows for word in row.label.split())
    table.add_column(Text(f"\n{grid.first}"), overflow="fold", min_width=min(longest, WIDTH // 4))
    for heading in grid.columns:
        side: JustifyMethod = "left" if heading in (("of",), ("other",)) else "right"
        text = "\n".join(f"{line} " for line in heading)
        table.add_column(Text(text), justify=side, overflow="fold")
    for row in grid.rows:
        cells = (
            Text(f"{c}" if c.over else f"{c} ", "bold red" if c.over else "") for c in row.cells
        )
        table.add_row(Text(row.label, style="bold" if row.kind == "trained" else ""), *cells)
    notes = [Text(note, style="dim") for note in grid.notes]
    return Group(Text(grid.title, style="bold"), table, *notes, Text(""))
