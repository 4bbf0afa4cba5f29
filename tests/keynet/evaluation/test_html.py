"""report.html: self-contained, escaped, well-formed, and drawn from the records."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keynet.evaluation.html import Curve, save_curve_png, write_html
from keynet.evaluation.page import Pair
from keynet.evaluation.records import Record

VOID = {"meta", "img", "br"}


class Tags(HTMLParser):
    """Collects what a browser would load, and checks that tags nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.loads += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def picture(kind: str, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (8, 8)).save(buffer, kind)
    return buffer.getvalue()


def records() -> list[Record]:
    where = ("emoji", "test", "all", "keynet_tiny", 256)
    rest = (None, None, 900, "share")
    return [
        Record(*where, "hit_rate_at_0.01", 0.8, *rest),
        Record(*where, "false_hit_rate_at_0.01", 0.02, *rest),
        Record(*where, "hit_rate_at_0.001", None, *rest, note="<b>few</b>"),
        Record(*where, "false_hits:negation", 0.25, *rest),
        Record(*where, "false_hits:near_concept", 0.75, *rest),
    ]


def pair(
    image: bytes | None = None, text: str | None = "what is it", kind: str = "negation"
) -> Pair:
    return Pair(image, text, "a fox", None, "what is this", "a wolf", 0.97, kind)


def curves() -> dict[str, list[Curve]]:
    x = np.linspace(0, 1, 5000)
    lines = [Curve(name, x, 1 - x / 3) for name in ("keynet_tiny 256 bit", "exact", "oracle")]
    return {"p_chr": lines, "closed_loop": lines}


def page(folder: Path, pairs: list[Pair]) -> str:
    path = folder / "report.html"
    write_html(path, records(), curves(), pairs, "Art: A & B\nCC-BY-4.0", "python train.py")
    return path.read_text(encoding="utf-8")


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    return tags


def test_nothing_is_loaded_from_outside(tmp_path: Path) -> None:
    text = page(tmp_path, [pair(picture("PNG")), pair(picture("WEBP"), kind="miss")])
    tags = parsed(text)
    assert not {"script", "link", "iframe", "object"} & set(tags.names)
    assert all(load.startswith(("data:image/", "#")) for load in tags.loads)
    assert "://" not in text and "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_user_text_is_escaped(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>\"'"
    text = page(tmp_path, [Pair(None, attack, attack, None, attack, attack, 0.9, attack)])
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "<b>few</b>" not in text
    assert "Art: A &amp; B<br>CC-BY-4.0" in text
    parsed(text)


def test_tables_flag_and_mark_as_in_the_terminal(tmp_path: Path) -> None:
    text = page(tmp_path, [])
    assert '<td class="over" title="n = 900">2.00!</td>' in text
    assert ">n/a</td>" in text
    assert "Worst" not in text.split("</style>")[1]


def test_captioned_photographs_are_shown_with_intervals_and_only_then(tmp_path: Path) -> None:
    where = ("flickr8k", "validation", "text_to_image:teacher:<clip>", "keynet_tiny", None)
    gain = Record(*where, "recall_at_10_gain", -0.021, -0.034, 0.005, 2500, "share")
    write_html(tmp_path / "captions.html", [gain], {}, [], "", "")
    text = (tmp_path / "captions.html").read_text(encoding="utf-8")
    assert "<h2>flickr8k, validation: captioned photographs, beside another method</h2>" in text
    assert '<td title="-3.4 to +0.5, n = 2,500">-2.1</td>' in text
    assert "<td>teacher:&lt;clip&gt;</td>" in text
    parsed(text)
    assert "captioned" not in page(tmp_path, [])


def test_three_plots_follow_the_page_colours_and_share_no_id(tmp_path: Path) -> None:
    text = page(tmp_path, [])
    assert text.count("<svg role=") == 3
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    svg = text[text.index("<svg") : text.rindex("</svg>")]
    assert "currentColor" in svg and "var(--accent)" in svg
    used = set(re.findall(r'(?:href="#|url\(#)([^")]*)', svg))
    assert used <= set(ids)


def test_the_page_is_the_same_twice(tmp_path: Path) -> None:
    def body() -> str:
        return page(tmp_path, [pair()]).split("<main>")[1]

    assert body() == body()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_browser_format_stays_as_it_is(tmp_path: Path, kind: str) -> None:
    content = picture(kind)
    uri = f"data:image/{kind.lower()};base64,{base64.b64encode(content).decode()}"
    assert uri in page(tmp_path, [pair(content)])


@pytest.mark.parametrize(("kind", "mode"), [("BMP", "RGB"), ("TIFF", "CMYK"), ("TIFF", "I;16")])
def test_another_format_becomes_png(tmp_path: Path, kind: str, mode: str) -> None:
    assert "data:image/png;base64," in page(tmp_path, [pair(picture(kind, mode))])


@pytest.mark.parametrize("content", [b"", b"junk", picture("BMP")[:60]])
def test_an_image_that_cannot_be_read_says_so(tmp_path: Path, content: bytes) -> None:
    assert "image cannot be read" in page(tmp_path, [pair(content)])


def test_long_text_is_cut_visibly(tmp_path: Path) -> None:
    text = page(tmp_path, [pair(text="x" * 1160)])
    assert "x" * 160 + "…" in text and "(1,000 more characters)" in text
    assert "x" * 161 not in text


def test_text_that_is_not_unicode_stays_visible(tmp_path: Path) -> None:
    assert "\\ud800" in page(tmp_path, [pair(text="\ud800")])


def test_curves_with_gaps_one_point_or_none_are_drawn(tmp_path: Path) -> None:
    nan = np.array([np.nan, np.nan])
    lines = [
        Curve("exact", nan, nan),
        Curve("concat_l2", np.array([0.5]), np.array([1.0])),
        Curve("keynet_tiny", np.array([]), np.array([])),
    ]
    save_curve_png(tmp_path / "curve.png", lines)
    with Image.open(tmp_path / "curve.png") as image:
        assert image.format == "PNG" and image.width > 1000


def test_an_unknown_plot_or_a_broken_curve_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no plot is called 'roc'; known are p_chr, closed_loop"):
        save_curve_png(tmp_path / "x.png", [], "roc")
    with pytest.raises(ValueError, match="curve 'exact'"):
        save_curve_png(tmp_path / "x.png", [Curve("exact", np.zeros(2), np.zeros(3))])
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match="cannot write the report"):
        page(tmp_path / "file", [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
