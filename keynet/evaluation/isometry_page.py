"""The figures of isometry beside recall: one table, for the terminal and for a page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template

from keynet.evaluation.captions import TEXT_TO_IMAGE
from keynet.evaluation.page import STYLE
from keynet.evaluation.records import Record
from keynet.evaluation.report import describe_machine, write_whole
from keynet.evaluation.table import Figures, Grid, Row, kind_of, label

COLUMNS = (  # (heading, (subset, metric))
    (("recall", "@1"), (TEXT_TO_IMAGE, "recall_at_1")),
    (("recall", "@10"), (TEXT_TO_IMAGE, "recall_at_10")),
    (("dist.", "image"), ("all", "distance_within_image")),
    (("dist.", "text"), ("all", "distance_within_text")),
    (("dist.", "across"), ("all", "distance_across")),
    (("dist.", "pairs"), ("all", "distance_of_pairs")),
    (("distort.", "image"), ("all", "distortion_within_image")),
    (("distort.", "text"), ("all", "distortion_within_text")),
    (("distort.", "across"), ("all", "distortion_across")),
    (("distort.", "shuffled"), ("all", "distortion_shuffled")),
)
LEGEND = (
    "Recall from text to image and distortion in percent. Distances are between unit vectors: of "
    "different photographs, of their texts, of a text and another's photograph (across) and its "
    "own (pairs). Distortion is the mean relative deviation of distances at the best common scale: "
    "a modality's own against those before the alignment, and those of texts against those of "
    "their pictures (across) or of others (shuffled: what spaces that share nothing come to)."
)


def isometry_grid(records: Sequence[Record]) -> Grid:
    """Return one row a method, in the order of the records; n/a where a figure has no value."""
    figures = Figures(records)
    (data, split), *others = figures.slices()
    if others:
        raise ValueError(f"records of {data}, {split} and of {others[0]}; give those of one")
    rows = []
    for method in dict.fromkeys((r.method, r.bits) for r in records):
        cells = (figures.cell((data, split, s, method), metric) for _, (s, metric) in COLUMNS)
        rows.append(Row(label(method), kind_of(method[0]), tuple(cells)))
    title = f"{data}, {split}: isometry"
    return Grid(title, tuple(heading for heading, _ in COLUMNS), tuple(rows), (LEGEND,))


def write_isometry_page(
    path: Path, grid: Grid, picture: bytes, notes: Sequence[str], command: str
) -> None:
    """Write the table and the t-SNE picture as one self-contained page, whole or not at all.

    Args:
        path: Where to.
        grid: Of ``isometry_grid``.
        picture: PNG.
        notes: Below the table, a line each.
        command: The command line that measured.

    Raises:
        OSError: When the file cannot be written.
    """
    head = "".join(f"<th>{'<br>'.join(map(escape, column))}</th>" for column in grid.columns)
    body = "".join(
        f"<tr><th>{escape(row.label)}</th>"
        + "".join(f'<td title="{escape(cell.hint)}">{escape(str(cell))}</td>' for cell in row.cells)
        + "</tr>"
        for row in grid.rows
    )
    machine = " · ".join(f"{k} {v}" for k, v in describe_machine().items() if v is not None)
    page = PAGE.substitute(
        style=STYLE,
        title=escape(grid.title),
        created=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        command=escape(command),
        head=head,
        body=body,
        notes="".join(f'<p class="note">{escape(note)}</p>' for note in (*grid.notes, *notes)),
        picture=base64.b64encode(picture).decode(),
        machine=escape(machine),
    )
    write_whole(path, page.encode())


PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>keynet: $title</title><style>$style .plot img { width: 100%; }</style></head><body>
<header><h1>$title</h1><p class="meta">$created · <code>$command</code></p></header>
<main>
<div class="wide"><table><thead><tr><th>method</th>$head</tr></thead>
<tbody>$body</tbody></table></div>$notes
<figure class="plot"><img alt="t-SNE of photographs and texts, a panel a method"
 src="data:image/png;base64,$picture"></figure>
</main>
<footer><p>$machine</p></footer>
</body></html>
""")
