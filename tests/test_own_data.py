"""The line that docs/own-data.md shows is read; tests/test_docs_run.py runs its commands."""

from __future__ import annotations

import re
from pathlib import Path

from data.chat_lines import read_line

PAGE = Path(__file__).parents[1] / "docs" / "own-data.md"


def test_the_line_that_is_shown_is_read() -> None:
    written = re.findall(r"```json\n(.*?)\n```", PAGE.read_text(encoding="utf-8"))
    found = read_line(
        written[0].encode(), lambda url: ("digest", Path(url)), model=None, shared=("user",)
    )
    assert (found.text, found.response, found.image) == (
        "What is this?", "A cat.", Path("pictures/17.jpg"),
    )  # fmt: skip
    assert found.unread == ()
