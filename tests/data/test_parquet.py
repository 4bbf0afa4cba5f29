from __future__ import annotations

import hashlib
import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from data.captioned import Captioned
from data.parquet import read_parquet
from data.parquet_rows import ROWS

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def picture(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), (number % 256, number // 256, 7)).save(buffer, "PNG")
    return buffer.getvalue()


def name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def write(path: Path, columns: dict[str, Any], rows: int = 4, **types: Any) -> Path:
    made = {n: pa.array(values, types.get(n)) for n, values in columns.items()}
    pq.write_table(pa.table(made), path, row_group_size=rows)
    return path


def structs(*contents: bytes | None, path: str | None = "image.png") -> list[dict[str, Any]]:
    return [{"bytes": content, "path": path} for content in contents]


ONE, TWO, THREE = picture(1), picture(2), picture(3)


@pytest.mark.parametrize("column", ["caption", "captions", "text"])
@pytest.mark.parametrize("texts", [["A dog .", " A cat\n"], [["A dog ."], ["A cat"]]])
def test_pictures_with_captions(tmp_path: Path, column: str, texts: list[Any]) -> None:
    path = write(tmp_path / "0.parquet", {"image": structs(ONE, TWO), column: texts, "n": [1, 2]})
    found = read_parquet(path, max_broken=0)
    assert {(p.name, p.image, p.captions, p.file) for p in found} == {
        (name(ONE), ONE, ("A dog .",), "0.parquet"),
        (name(TWO), TWO, ("A cat",), "0.parquet"),
    }
    assert [p.name for p in found] == sorted(p.name for p in found)


@pytest.mark.parametrize(
    "types",
    [
        {"image": pa.binary()},
        {"image": pa.large_binary(), "caption": pa.large_string()},
        {"image": pa.binary(), "caption": pa.dictionary(pa.int32(), pa.string())},
        {"image": pa.binary_view(), "caption": pa.string_view()},
    ],
)
def test_bare_bytes_and_other_types(tmp_path: Path, types: dict[str, Any]) -> None:
    path = write(tmp_path / "0.parquet", {"image": [ONE], "caption": ["A dog"]}, **types)
    assert read_parquet(path)[0].captions == ("A dog",)


def test_lists_of_one_length(tmp_path: Path) -> None:
    rows = {"image": [ONE], "captions": [["A dog", "A pup"]]}
    path = write(tmp_path / "0.parquet", rows, image=pa.binary(), captions=pa.list_(pa.string(), 2))
    assert read_parquet(path)[0].captions == ("A dog", "A pup")


def test_columns_of_other_names(tmp_path: Path) -> None:
    columns = {"jpg": [ONE, TWO], "c0": ["A dog", "A cat"], "c1": [["Dog", "A dog"], None]}
    path = write(tmp_path / "0.parquet", columns)
    found = {p.name: p.captions for p in read_parquet(path, "jpg", ["c0", "c1"])}
    assert found == {name(ONE): ("A dog", "Dog", "A dog"), name(TWO): ("A cat",)}
    assert {p.captions for p in read_parquet(path, "jpg", "c0")} == {("A dog",), ("A cat",)}


def test_rows_of_one_picture_are_one_photograph(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "0.parquet", {"image": structs(ONE, TWO, ONE), "caption": ["a", "b", "c"]})
    write(tmp_path / "1.parquet", {"image": structs(ONE, THREE), "caption": ["a", "d"]})
    with caplog.at_level(logging.INFO):
        found = read_parquet(f"{tmp_path}/*.parquet")
    assert {p.name: p.captions for p in found} == {
        name(ONE): ("a", "c", "a"), name(TWO): ("b",), name(THREE): ("d",),
    }  # fmt: skip
    assert [p.file for p in found] == ["0.parquet", "0.parquet", "1.parquet"]
    (record,) = caplog.records
    assert record.getMessage().startswith("2 rows repeat a picture: 3 photographs")


def test_a_list_of_captions_is_as_many_rows(tmp_path: Path) -> None:
    texts = ["a", "b", "a", "c", "d"]
    listed = write(tmp_path / "0.parquet", {"image": [ONE], "caption": [texts]})
    rows = write(tmp_path / "1.parquet", {"image": [ONE] * 5, "caption": texts})
    assert [p.captions for path in (listed, rows) for p in read_parquet(path)] == [(*texts,)] * 2


def test_broken_rows_of_two_folders_are_two(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(
            tmp_path / folder / "0.parquet", {"image": [None], "caption": ["a"]}, image=pa.binary()
        )
    with pytest.raises(ValueError, match=r"^2 of 2 photographs are broken \(row 1 of 0\.parquet"):
        read_parquet(f"{tmp_path}/*/0.parquet")


def test_a_text_that_is_not_utf8_names_the_file(tmp_path: Path) -> None:
    count = ROWS + 3
    texts = pa.array([b"a"] * (count - 1) + [b"k\xfchn"]).view(pa.string())
    path = write(tmp_path / "0.parquet", {"image": [ONE] * count, "caption": texts}, rows=count)
    message = rf"0\.parquet has a text that is not UTF-8 \(.*\) in the rows {ROWS + 1} to {count};"
    with pytest.raises(ValueError, match=message):
        read_parquet(path)


def test_rows_are_read_across_row_groups(tmp_path: Path) -> None:
    count = 2 * ROWS + 5
    contents = [picture(number) for number in range(count)]
    texts = [f"Photo {number}" for number in range(count)]
    path = write(tmp_path / "0.parquet", {"image": structs(*contents), "text": texts}, rows=50)
    found = {p.name: p.captions for p in read_parquet(path)}
    assert found == {name(c): (t,) for c, t in zip(contents, texts, strict=True)}


CUT = picture(9)[:50]  # in the pixels
BROKEN: list[tuple[Any, Any, str]] = [
    (None, "x", "row 3 of 0.parquet: no bytes of a picture"),
    (b"", "x", "row 3 of 0.parquet: image is empty"),
    (b"no picture", "x", "row 3 of 0.parquet: image is not an image that can be read"),
    (CUT, "x", "row 3 of 0.parquet: image is damaged or cut short"),
    (THREE, None, "row 3 of 0.parquet: no captions"),
    (THREE, " ", "row 3 of 0.parquet: an empty caption"),
]


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize(("content", "text", "reason"), BROKEN, ids=lambda _: "")
def test_a_broken_photograph_is_skipped_and_named(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: Any,
    text: Any,
    reason: str,
    as_list: bool,
) -> None:
    texts = ["a", "b", text]
    if as_list:
        texts = [["a"], ["b"], [] if text is None else [text]]
    path = write(tmp_path / "0.parquet", {"image": structs(ONE, TWO, content), "caption": texts})
    with caplog.at_level(logging.WARNING):
        assert {p.image for p in read_parquet(path, max_broken=0.34)} == {ONE, TWO}
    (record,) = caplog.records
    assert record.getMessage().startswith(f"1 of 3 photographs are broken ({reason}")
    with pytest.raises(ValueError, match=r"1 of 3 .* more than max_broken=0\.3; mend the files"):
        read_parquet(path, max_broken=0.3)


def test_one_broken_row_breaks_the_photograph_of_all(tmp_path: Path) -> None:
    images = structs(ONE, TWO, ONE, ONE)
    path = write(tmp_path / "0.parquet", {"image": images, "caption": ["a", "b", "", "c"]})
    assert [p.image for p in read_parquet(path, max_broken=0.5)] == [TWO]
    with pytest.raises(ValueError, match=r"1 of 2 .*row 3 of 0\.parquet: an empty caption"):
        read_parquet(path)
    path = write(tmp_path / "1.parquet", {"image": [ONE], "caption": [["a", None]]})
    with pytest.raises(ValueError, match="captions that are no list of texts"):
        read_parquet(path)


COLUMNS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"img": [ONE], "caption": ["a"]}, {},
     r"has no column 'image': data\.source\.read\.image; it has img \(binary\), caption \(string"),
    ({"image": [ONE], "words": ["a"]}, {},
     r"has none of the columns caption, captions, text: name one, data\.source\.read\.captions="),
    ({"image": [ONE], "caption": ["a"], "text": ["a"]}, {}, "has several of the columns caption"),
    ({"image": [ONE], "words": ["a"]}, {"captions": ["words", "wrods"]},
     r"has no column 'wrods': data\.source\.read\.captions; it has image \(binary\), words"),
    ({"image": ["a.jpg"], "caption": ["a"]}, {}, r"'image' .* holds no pictures, expected \{bytes"),
    ({"image": [{"path": "a.jpg"}], "caption": ["a"]}, {}, "'image' .* holds no pictures"),
    ({"image": [ONE], "caption": [3]}, {}, r"'caption' .* holds no captions, .* caption \(int64\)"),
    ({"image": [ONE], "caption": [[3]]}, {}, "'caption' .* holds no captions"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "options", "message"), COLUMNS)
def test_a_wrong_column_lists_what_is_there(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "0.parquet", columns)
    with pytest.raises(ValueError, match=message) as error:
        read_parquet(path, **options)
    assert "\n" not in str(error.value)


def test_what_is_no_parquet(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.parquet", {"image": [ONE] * 9, "caption": ["a"] * 9})
    content = whole.read_bytes()
    damaged = bytearray(content)
    damaged[4:60] = b"\xff" * 56
    for bad in (b"", b"no parquet at all", content[:-30], content[30:], bytes(damaged)):
        (tmp_path / "bad.parquet").write_bytes(bad)
        with pytest.raises(
            ValueError, match=r"bad\.parquet is no Parquet file, or is dam"
        ) as error:
            read_parquet([whole, tmp_path / "bad.parquet"])
        assert "\n" not in str(error.value)
    empty = write(
        tmp_path / "empty.parquet", {"image": [], "caption": []},
        image=pa.binary(), caption=pa.string(),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"empty\.parquet has no rows"):
        read_parquet(empty)
    with pytest.raises(FileNotFoundError, match=r"no Parquet file at '.*none\.parquet'"):
        read_parquet(tmp_path / "none.parquet")
    with pytest.raises(ValueError, match=r"max_broken=-1: expected a share"):
        read_parquet(whole, max_broken=-1)


def test_without_pyarrow_one_line_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "0.parquet", {"image": [ONE], "caption": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'keynet-cache\[parquet\]'"):
        read_parquet(path)


def test_parquet_files_become_requests(tmp_path: Path) -> None:
    contents = [picture(60 * number) for number in range(8)]
    texts = [[f"Photo {number}"] * 5 for number in range(8)]
    write(tmp_path / "train-0.parquet", {"image": structs(*contents[:6]), "caption": texts[:6]})
    write(tmp_path / "test-0.parquet", {"image": structs(*contents[5:]), "caption": texts[5:]})
    made = Captioned(
        train=f"{tmp_path}/train-*.parquet", test=f"{tmp_path}/test-*.parquet",
        read=read_parquet, development=2,
    )  # fmt: skip
    pictures = {s: {r.entity for r in made.captions(s)} for s in ("train", "calibration", "test")}  # type: ignore[arg-type]
    assert pictures["test"] == {name(c) for c in contents[5:]}
    assert pictures["train"] | pictures["calibration"] == {name(c) for c in contents[:5]}
    assert len(pictures["calibration"]) == 2
