"""Writes an evaluation: report.json, report.html, thresholds into the export, the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from keynet.evaluation.evaluate import Evaluation
from keynet.evaluation.html import save_curve_png, write_html
from keynet.evaluation.report import write_report
from keynet.evaluation.table import print_table
from keynet.export.manifest import set_thresholds


def write_evaluation(
    found: Evaluation,
    folder: Path,
    command: str,
    attribution: Sequence[str],
    export: Path | None = None,
) -> None:
    """Write ``report.json``, ``report.html`` and ``curve.png`` to ``folder`` and print the table.

    Args:
        found: What was measured.
        folder: Where to.
        command: The command that measured it.
        attribution: Lines for the makers of data and weights.
        export: An export that takes the calibrated thresholds into its manifest.
    """
    write_report(folder / "report.json", found.records, command)
    lines = "\n".join(attribution)
    write_html(folder / "report.html", found.records, found.curves, found.pairs, lines, command)
    save_curve_png(folder / "curve.png", found.curves["p_chr"])
    if export is not None:
        set_thresholds(export, found.thresholds)
    print_table(found.records)
    print(f"{lines}\n\nreport: {folder / 'report.html'}")
    if export is not None:
        print(f"model:  {export}")
