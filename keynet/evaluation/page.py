"""The page that reports share: its look, tables, inline plots, mistakes and all records.

One file without scripts or outside resources; plots are inline SVG that follow light and dark.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template

import matplotlib
from matplotlib.figure import Figure
from PIL import Image

from keynet.evaluation.records import Record
from keynet.evaluation.report import describe_machine, installed_versions, write_whole
from keynet.evaluation.table import Cell, Grid

MISS = "miss"  # the kind of a pair that should have been served; all others are false hits
TEXT_LIMIT = 160  # characters of a request or response shown
IMAGE_LIMIT = 256 * 1024  # larger pictures are shown as thumbnails
THUMBNAIL = 256  # pixels a side
INK, LINE, ACCENT, MUTED = "#222222", "#d0d0d0", "#0b62c4", "#858585"
CSS_NAMES = {
    INK: "currentColor",
    LINE: "var(--line)",
    ACCENT: "var(--accent)",
    MUTED: "var(--muted)",
}
STYLES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">")
SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif")
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A query and the entry nearest to it: a false hit of some kind, or (kind "miss") a miss."""

    query_image: bytes | None
    query_text: str | None
    query_response: str | None
    served_image: bytes | None
    served_text: str | None
    served_response: str | None
    similarity: float
    kind: str


def write_page(
    path: Path,
    title: str,
    grids: Sequence[Grid],
    plots: Sequence[str],
    pairs: Mapping[str, Sequence[Pair]],
    attribution: Sequence[str],
    command: str,
    records: Sequence[Record],
) -> None:
    """Write a report as one self-contained page, whole or not at all.

    Args:
        path: Where to.
        title: Of the page.
        grids: Its tables.
        plots: HTML, see ``inline_svg``.
        pairs: By heading; one without pairs is left out.
        attribution: Whose art is shown, and its licence; a line each.
        command: The command line that measured.
        records: All figures.

    Raises:
        OSError: When the file cannot be written.
    """
    page = PAGE.substitute(
        style=STYLE,
        title=escape(title),
        created=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        command=escape(command),
        tables="\n".join(map(_table, grids)) or "<p>No figures measured.</p>",
        plots="\n".join(plots),
        pairs="".join(_pairs(*item) for item in pairs.items()),
        attribution="<br>".join(map(escape, attribution)),
        machine=_facts({**describe_machine(), **installed_versions()}),
        records=_every_record(records),
    )
    # A lone surrogate cannot be encoded; shown as its escape it stays visible.
    write_whole(path, page.encode("utf-8", "backslashreplace"))


def plot_settings() -> AbstractContextManager[None]:
    """Return the settings under which figures are made and drawn."""
    # A fixed salt gives the same ids, hence the same page, for the same figures.
    return matplotlib.rc_context(
        {"svg.hashsalt": "keynet", "svg.fonttype": "path", "font.size": 9, "text.parse_math": False}
    )


def inline_svg(figure: Figure, title: str, name: str) -> str:
    """Return a figure as inline SVG in the page's colours; ``name`` keeps ids apart."""
    figure.patch.set_alpha(0)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue().decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for color, css in CSS_NAMES.items():
        svg = svg.replace(color, css)
    head = f'<svg role="img" aria-label="{escape(title)}"'
    return f'<figure class="plot">{svg.replace("<svg", head, 1)}</figure>'


def _table(grid: Grid) -> str:
    head = "".join(f"<th>{'<br>'.join(map(escape, column))}</th>" for column in grid.columns)
    body = "".join(
        f'<tr class="{row.kind}"><th>{escape(row.label)}</th>{"".join(map(_cell, row.cells))}</tr>'
        for row in grid.rows
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in grid.notes)
    return (
        f'<h2>{escape(grid.title)}</h2><div class="wide"><table>'
        f"<thead><tr><th>{escape(grid.first)}</th>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}"
    )


def _cell(cell: Cell) -> str:
    over = ' class="over"' if cell.over else ""
    hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
    return f"<td{over}{hint}>{escape(str(cell))}</td>"


def _pairs(title: str, pairs: Sequence[Pair]) -> str:
    cards = "".join(
        f'<article><p class="kind">{escape(p.kind.replace("_", " "))}'
        f"<span>similarity {p.similarity:.3f}</span></p>"
        f'<div class="pair">{_side("query", p.query_image, p.query_text, p.query_response)}'
        f"{_side(_role(p), p.served_image, p.served_text, p.served_response)}</div></article>"
        for p in pairs
    )
    return f'<h2>{title}</h2><div class="pairs">{cards}</div>' if pairs else ""


def _role(pair: Pair) -> str:
    return "in store" if pair.kind == MISS else "served"


def _side(role: str, image: bytes | None, text: str | None, response: str | None) -> str:
    return (
        f'<div><p class="role">{role}</p>{_image(image)}'
        f'<p dir="auto">{_text(text)}</p><p class="response" dir="auto">{_text(response)}</p></div>'
    )


def _text(text: str | None) -> str:
    if text is None:
        return '<span class="absent">none</span>'
    if len(text) <= TEXT_LIMIT:
        return escape(text)
    rest = len(text) - TEXT_LIMIT
    return f'{escape(text[:TEXT_LIMIT])}… <span class="absent">({rest:,} more characters)</span>'


def _image(content: bytes | None) -> str:
    if content is None:
        return '<p class="absent">no image</p>'
    kind = _browser_format(content)
    if kind is None or len(content) > IMAGE_LIMIT:
        try:
            with Image.open(io.BytesIO(content)) as image:
                image.thumbnail((THUMBNAIL, THUMBNAIL))
                buffer = io.BytesIO()
                image.convert("RGBA").save(buffer, "PNG")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return '<p class="absent">image cannot be read</p>'
        kind, content = "png", buffer.getvalue()
    data = base64.b64encode(content).decode()
    return f'<img alt="" src="data:image/{kind};base64,{data}">'


def _browser_format(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return next((kind for start, kind in SIGNATURES if content.startswith(start)), None)


def _facts(facts: Mapping[str, object]) -> str:
    items = (f"{escape(k)} {escape(str(v))}" for k, v in facts.items() if v is not None)
    return " · ".join(items)


def _every_record(records: Sequence[Record]) -> str:
    names = [field.name for field in fields(Record)]
    rows = ("".join(f"<td>{_plain_value(getattr(r, n))}</td>" for n in names) for r in records)
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"


def _plain_value(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else escape(str(value))


STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1d1f21; --muted: #6f747a; --line: #dcdfe3;
  --accent: #0b62c4; --bad: #b3261e; --card: #f7f8f9; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --ink: #e3e5e8; --muted: #949aa2;
  --line: #33373d; --accent: #6cb0ff; --bad: #ff8a80; --card: #1c1f23; } }
* { box-sizing: border-box; }
body { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 0; }
code { font: .85em ui-monospace, monospace; overflow-wrap: anywhere; }
.note, footer, .meta, .absent, .role { color: var(--muted); font-size: .85rem; margin: .35rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--muted); font-weight: 500; vertical-align: bottom; line-height: 1.25; }
tbody tr { border-top: 1px solid var(--line); } tbody th { font-weight: 400; }
.trained th { color: var(--accent); font-weight: 600; } .oracle { font-style: italic; }
.over { color: var(--bad); font-weight: 700; }
.plot { margin: 1.5rem 0; } .plot svg { width: 100%; height: auto; }
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(19rem, 1fr)); gap: 1rem; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .75rem; }
.kind { display: flex; justify-content: space-between; margin: 0 0 .5rem; font-size: .85rem;
  font-variant-numeric: tabular-nums; } .kind span { color: var(--muted); }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: .75rem; font-size: .9rem; }
.pair p { margin: .25rem 0; overflow-wrap: anywhere; } .pair .response { font-weight: 600; }
.pair img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: #fff;
  border-radius: 4px; }
footer { border-top: 1px solid var(--line); margin-top: 3rem; padding-top: 1rem; }
details table { font-size: .75rem; } details td, details th { text-align: left; }
"""

PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>keynet report: $title</title><style>$style</style></head><body>
<header><h1>keynet report: $title</h1><p class="meta">$created · <code>$command</code></p></header>
<main>
$tables
$plots
$pairs
<details><summary>All records</summary><div class="wide"><table>$records</table></div></details>
</main>
<footer><p>$attribution</p><p>$machine</p></footer>
</body></html>
""")
