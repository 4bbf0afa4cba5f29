"""What is in your data, and what a cache could save of it: python -m scripts.profile_data

For a chat log also which lines are broken and why, and how far its groups are in doubt. Works for
any data source: data=emoji.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from data.broken_lines import shown_lines
from data.chat_log import Log
from data.profile import ORACLE, Figure, profile
from data.requests import Source, Split
from data.training_pairs import training_triples, write_triples
from keynet.evaluation.grid_table import print_grid
from keynet.evaluation.records import Record, Sheet
from keynet.evaluation.report import write_report
from keynet.evaluation.table import Cell, Grid, Row
from keynet.training.config import explained
from keynet.types import Request

SPLITS: tuple[Split, ...] = ("train", "calibration", "test")
ALL = "all"
DATA = "data"  # the method of figures that are no saving
NOTES = (
    "saved_requests, saved_tokens: answered before, if all is kept and nothing expires. exact: "
    "equal bytes, text and scope; oracle: a perfect key, equal group and scope.",
    "Shares in percent.",
)


def run(cfg: DictConfig) -> None:
    """Read, count, print, write."""
    for name in ("pairs", "doubt"):
        if cfg[name] is not None and Path(cfg[name]).exists():
            raise ValueError(f"{name}={cfg[name]} is there already; give another name, or move it")
    source: Source = instantiate(cfg.data.source)
    log = getattr(source, "log", None)
    log = log if isinstance(log, Log) else None
    requests: dict[str, list[Request]] = {split: source.requests(split) for split in SPLITS}
    # A log's own order is that of time.
    everything = [r for split in SPLITS for r in requests[split]] if log is None else log.requests
    found = {ALL: profile(everything)} | {s: profile(of) for s, of in requests.items()}
    records = [
        Sheet(source.name, split, "all", figure.cache or DATA, None).figure(
            figure.what, figure.value, n=figure.n, unit=figure.unit
        )
        for split, figures in found.items()
        for figure in figures
    ]
    grids = [figures_grid(source.name, found)]
    if log is not None:
        records += log_records(source.name, log)
        grids = [broken_grid(source.name, log), *grids, doubt_grid(source.name, log)]
    out = Path(cfg.out)
    write_report(out / "report.json", records, " ".join(["python", *sys.argv]))
    for grid in grids:
        print_grid(grid)
    if cfg.pairs is not None:
        count = write_triples(training_triples(requests["train"], cfg.seed), Path(cfg.pairs))
        print(f"pairs:  {cfg.pairs}, {count:,} lines")
    if cfg.doubt is not None:
        if log is None:
            raise ValueError("doubt is of a chat log's groups; give data=chat_log")
        count = write_doubt(log, Path(cfg.doubt))
        print(f"doubt:  {cfg.doubt}, {count:,} pairs to label")
    print(f"report: {out / 'report.json'}")


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


def write_doubt(log: Log, path: Path) -> int:
    """Write the pairs in doubt as JSON lines to be labelled, and return how many.

    ``{"a": ID, "b": ID, "same": null, "a_text": TEXT, "b_text": TEXT, "answer": TEXT}``; a label
    counts for all requests with these two texts and this answer.
    """
    with path.open("w", encoding="utf-8") as file:
        for pair in log.doubt.examples:
            a, b = (log.requests[number] for number in pair)
            line = {
                "a": a.tags["id"], "b": b.tags["id"], "same": None,
                "a_text": a.text, "b_text": b.text, "answer": a.response,
            }  # fmt: skip
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return len(log.doubt.examples)


def broken_grid(name: str, log: Log) -> Grid:
    """Return a row a reason; the fields that were not read are in the notes."""
    rows = [
        Row(reason, "baseline", (Cell(f"{len(numbers):,}"), Cell(shown_lines(numbers))))
        for reason, numbers in log.broken.by_reason().items()
    ]
    notes = [f"{len(log.broken):,} of {log.lines:,} lines are broken; report.json names them all."]
    if log.unread:
        fields = ", ".join(f"{field} ({count:,})" for field, count in log.unread.items())
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


def log_records(name: str, log: Log) -> list[Record]:
    """Return lines, broken ones by reason with all their numbers, and doubt."""
    sheet = Sheet(name, ALL, "all", DATA, None)
    doubt, n = log.doubt, len(log.requests)
    return [
        sheet.figure("lines", log.lines, n=log.lines, unit="lines"),
        sheet.share("broken_lines", len(log.broken), log.lines),
        *(
            Sheet(name, ALL, f"broken:{reason}", DATA, None).figure(
                "broken_lines",
                len(numbers),
                n=log.lines,
                unit="lines",
                note=f"lines {', '.join(map(str, numbers))}",
            )
            for reason, numbers in log.broken.by_reason().items()
        ),
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


@hydra.main(version_base="1.3", config_path="../conf", config_name="profile_data")
def main(cfg: DictConfig) -> None:
    """Compose and run."""
    run(cfg)


if __name__ == "__main__":
    explained(main)
