from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from keynet.evaluation.isometry_page import isometry_grid, write_isometry_page
from keynet.evaluation.records import Record, Sheet

SHEET = Sheet("flickr8k", "test", "all", "affine:<b>", None)
PNG = b"\x89PNG\r\n\x1a\nnot really"


def records() -> list[Record]:
    other = replace(SHEET, method="unaligned")
    return [
        replace(SHEET, subset="text_to_image").figure("recall_at_10", 0.4321, 0.4, 0.5, n=500),
        SHEET.figure("distance_across", 1.2345, 1.2, 1.3, n=900, unit="distance"),
        SHEET.figure("distortion_across", 0.1234, n=900),
        other.figure("distance_across", None, note="no common space", unit="distance"),
    ]


def test_a_row_a_method_in_the_order_of_the_records() -> None:
    grid = isometry_grid(records())
    assert [row.label for row in grid.rows] == ["affine:<b>", "unaligned"]
    assert grid.title == "flickr8k, test: isometry"
    found = dict(zip((" ".join(c) for c in grid.columns), grid.rows[0].cells, strict=True))
    assert found["recall @10"].text == "43.2"
    assert found["dist. across"].text == "1.23"
    assert found["distort. across"].text == "12.3"
    assert found["recall @1"].text == "-"
    missing = grid.rows[1].cells[4]
    assert (missing.text, missing.hint) == ("n/a", "no common space")


def test_records_of_two_data_sets_are_refused() -> None:
    elsewhere = replace(SHEET, data="emoji").figure("distortion_across", 0.5)
    with pytest.raises(ValueError, match="flickr8k, test and of"):
        isometry_grid([*records(), elsewhere])


def test_the_page_holds_table_picture_and_notes(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_isometry_page(path, isometry_grid(records()), PNG, ["fitted on 5 < 6"], "python -m x")
    page = path.read_text()
    assert "<th>affine:&lt;b&gt;</th>" in page and "affine:<b>" not in page
    assert "fitted on 5 &lt; 6" in page
    assert ">43.2</td>" in page
    assert f"data:image/png;base64,{base64.b64encode(PNG).decode()}" in page
    assert "<script" not in page and "$" not in page.partition("</style>")[2]
