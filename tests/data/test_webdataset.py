from __future__ import annotations

import codecs
import gzip
import io
import json
import logging
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from data.photographs import Photograph
from data.webdataset import read_shards

Member = tuple[str, bytes]


def picture(colour: str = "red", encoding: str = "WEBP") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), colour).save(buffer, encoding)
    return buffer.getvalue()


def captions(*texts: str) -> bytes:
    return json.dumps({"captions": texts}).encode()


def whole(name: str, text: str = "a dog") -> list[Member]:
    return [(f"{name}.webp", picture()), (f"{name}.json", captions(text))]


def write(path: Path, members: list[Member]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def names(photographs: list[Photograph]) -> list[str]:
    return [photograph.name for photograph in photographs]


def test_what_is_read(tmp_path: Path) -> None:
    png, jpeg = picture("blue", "PNG"), picture("green", "JPEG")
    shard = write(
        tmp_path / "00000.tar",
        [
            ("b.png", png),
            ("b.json", json.dumps({"caption": " a cat\n", "key": "b", "width": 8}).encode()),
            ("a.webp", picture()),
            ("a.json", captions("one dog", "zwei Hunde über Bord")),
            ("c.JPG", jpeg),
            ("c.txt", b"a horse\n"),
            ("d.jpeg", jpeg),
            ("d.json", b'{"caption": null, "status": "success"}'),
            ("d.txt", b"a cow"),
        ],
    )
    assert read_shards([shard]) == [
        Photograph("a", picture(), ("one dog", "zwei Hunde über Bord"), "00000.tar"),
        Photograph("b", png, ("a cat",), "00000.tar"),
        Photograph("c", jpeg, ("a horse",), "00000.tar"),
        Photograph("d", jpeg, ("a cow",), "00000.tar"),
    ]


def test_json_goes_before_txt(tmp_path: Path) -> None:
    shard = write(tmp_path / "s.tar", [*whole("a", "from json"), ("a.txt", b"from txt")])
    assert read_shards(shard)[0].captions == ("from json",)


def test_the_order_of_members_does_not_matter(tmp_path: Path) -> None:
    members = [member for name in "cab" for member in whole(name, f"a {name}")]
    (tmp_path / "turned").mkdir()
    expected = read_shards(write(tmp_path / "s.tar", members))
    assert names(expected) == ["a", "b", "c"]
    for order in (members[::-1], members[::2] + members[1::2]):  # of the latter, none adjacent
        assert read_shards(write(tmp_path / "turned" / "s.tar", order)) == expected


def test_other_members_are_ignored(tmp_path: Path) -> None:
    # As in webdataset, the extension begins at the first dot of the file name.
    others = [("a.seg.png", b"mask"), ("a.cls", b"3"), ("README", b"x"), (".hidden.json", b"x")]
    path = tmp_path / "s.tar"
    write(path, [*whole("a"), *others, *whole("folder.v2/b")])
    with tarfile.open(path, "a") as tar:
        folder = tarfile.TarInfo("folder.jpg")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    assert names(read_shards(path)) == ["a", "folder.v2/b"]


def test_the_order_is_that_of_shards_and_names(tmp_path: Path) -> None:
    for number in (2, 0, 1, 10):
        write(tmp_path / f"train-{number:02}.tar", whole(f"photo{9 - number}"))
    write(tmp_path / "val.tar", whole("other"))
    found = read_shards(f"{tmp_path}/train-*.tar")
    assert [photograph.file for photograph in found] == [
        f"train-{number:02}.tar" for number in (0, 1, 2, 10)
    ]
    assert names(found) == ["photo9", "photo8", "photo7", "photo-1"]


def test_settings_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no shard: the list of paths is empty"):
        read_shards([])
    with pytest.raises(FileNotFoundError, match=r"no shard at '.*none-\*\.tar'"):
        read_shards(f"{tmp_path}/none-*.tar")
    with pytest.raises(FileNotFoundError, match="no shard is named; give a path"):
        read_shards(None)  # type: ignore[arg-type]
    for share in (-0.1, 1.0, None):
        with pytest.raises(ValueError, match=rf"max_broken={share}: expected a share in \[0, 1\)"):
            read_shards(tmp_path, share)  # type: ignore[arg-type]


IMAGE, JSON = ("x.webp", picture()), ("x.json", captions("a dog"))
BROKEN: list[tuple[list[Member], str]] = [
    ([IMAGE, ("x.json", b'{"captions": [')], "JSON that cannot be read"),
    ([IMAGE, ("x.json", b'{"captions": ["\xff"]}')], "a text that is not UTF-8"),
    ([IMAGE, ("x.json", b'{"caption": "a dog", "id": ' + b"9" * 5_000 + b"}")], "JSON that cannot"),
    ([IMAGE, ("x.json", b"[" * 100_000)], "JSON that cannot be read"),
    ([IMAGE, ("x.json", rb'{"captions": ["a dog \ud83d"]}')], "a caption that is not Unicode"),
    ([IMAGE, ("x.json", b'["a dog"]')], "JSON that is a list, not an object"),
    ([IMAGE, ("x.json", b'{"captions": "a dog"}')], "captions that are no list of texts"),
    ([IMAGE, ("x.json", b'{"captions": ["a dog", 3]}')], "captions that are no list of texts"),
    ([IMAGE, ("x.json", b'{"captions": ""}')], "captions that are no list of texts"),
    ([IMAGE, ("x.json", b'{"caption": 3}')], "captions that are no list of texts"),
    ([IMAGE, ("x.json", b'{"captions": []}')], "no captions"),
    ([IMAGE, ("x.json", b'{"title": "a dog"}')], "no captions"),
    ([IMAGE], "no captions"),
    ([IMAGE, ("x.json", captions("a dog", " \n"))], "an empty caption"),
    ([IMAGE, ("x.txt", b"")], "an empty caption"),
    ([IMAGE, ("x.txt", b"\xff")], "a text that is not UTF-8"),
    ([JSON], "no image"),
    ([("x.gif", picture()), JSON], "no image"),
    ([("x.webp", b""), JSON], "image is empty"),
    ([("x.webp", b"no picture"), JSON], "image is not an image that can be read"),
    ([("x.webp", picture()[:-9]), JSON], "image is damaged or cut short"),
    ([IMAGE, JSON, IMAGE], "several images"),
    ([IMAGE, JSON, ("x.png", picture("red", "PNG"))], "several images"),
    ([IMAGE, JSON, JSON], "captions twice"),
]


@pytest.mark.parametrize(("members", "reason"), BROKEN)
def test_a_broken_photograph_is_skipped_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, members: list[Member], reason: str
) -> None:
    shard = write(tmp_path / "s.tar", [*whole("a"), *members, *whole("y")])
    with caplog.at_level(logging.WARNING):
        assert names(read_shards(shard, max_broken=0.34)) == ["a", "y"]
    (record,) = caplog.records
    start = f"1 of 3 photographs are broken (x in s.tar: {reason}"
    assert record.getMessage().startswith(start)
    assert record.getMessage().endswith("): they are skipped")
    with pytest.raises(ValueError, match=r"1 of 3 .* more than max_broken=0.33; mend the shards"):
        read_shards(shard, max_broken=0.33)


def test_a_name_in_two_shards_is_broken_in_both(tmp_path: Path) -> None:
    write(tmp_path / "0.tar", [*whole("a"), *whole("x")])
    write(tmp_path / "1.tar", [*whole("x"), *whole("b")])
    assert names(read_shards(f"{tmp_path}/?.tar", max_broken=0.5)) == ["a", "b"]
    with pytest.raises(ValueError, match=r"x in 1\.tar: in several shards: rename the members"):
        read_shards(f"{tmp_path}/?.tar")


def test_a_name_that_is_not_unicode_is_broken(tmp_path: Path) -> None:
    shard = write(tmp_path / "s.tar", [*whole("a"), *whole("k\udcfchn")])
    assert names(read_shards(shard, max_broken=0.5)) == ["a"]
    with pytest.raises(ValueError, match=r"\(k\\udcfchn in s\.tar: a name that is not Unicode\)"):
        read_shards(shard)


def test_five_names_and_the_count_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for shard in (0, 1):
        broken = [(f"{shard}{number}.webp", picture()) for number in range(4)]
        write(tmp_path / f"{shard}.tar", [*broken, *whole(f"whole{shard}")])
    with caplog.at_level(logging.WARNING):
        assert len(read_shards(f"{tmp_path}/?.tar", max_broken=0.8)) == 2
    (record,) = caplog.records
    message = record.getMessage()
    assert message.startswith("8 of 10 photographs are broken")
    assert [name for name in ("00", "01", "02", "03", "10", "11") if f"{name} in" in message] == [
        "00", "01", "02", "03", "10",
    ]  # fmt: skip


def test_whole_shards_log_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read_shards(write(tmp_path / "s.tar", whole("a")), max_broken=0)
    assert not caplog.records


def test_a_cut_shard_is_never_a_shorter_data_set(tmp_path: Path) -> None:
    shard = write(tmp_path / "whole.tar", [m for name in "abc" for m in whole(name)])
    content = shard.read_bytes()
    with tarfile.open(shard) as tar:
        end = tar.getmembers()[-1].offset_data + tarfile.BLOCKSIZE
    cut = tmp_path / "cut.tar"
    for length in (*range(0, end, 128), end, end + tarfile.BLOCKSIZE - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"cut\.tar .*copy it again"):
            read_shards(cut, max_broken=0.99)
    cut.write_bytes(content[: end + tarfile.BLOCKSIZE])  # the end mark's first block
    assert names(read_shards(cut)) == ["a", "b", "c"]


@pytest.mark.parametrize("junk", [b"\0", b"x"])
def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path, junk: bytes) -> None:
    shard = write(tmp_path / "s.tar", [m for name in "abc" for m in whole(name)])
    with tarfile.open(shard) as tar:
        header = tar.getmembers()[2].offset
    content = bytearray(shard.read_bytes())
    content[header : header + tarfile.BLOCKSIZE] = junk * tarfile.BLOCKSIZE
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=rf"s\.tar .*at byte {header:,}"):
        read_shards(shard)


def test_a_member_that_is_larger_than_its_shard_is_not_read(tmp_path: Path) -> None:
    shard = write(tmp_path / "s.tar", whole("a"))
    content = bytearray(shard.read_bytes())
    member = tarfile.TarInfo("a.webp")
    member.size = 10**12  # reading it would end in a MemoryError
    content[: tarfile.BLOCKSIZE] = member.tobuf(tarfile.GNU_FORMAT)[: tarfile.BLOCKSIZE]
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=r"s\.tar is cut off or damaged at byte 1,000,"):
        read_shards(shard)


def test_a_byte_order_mark_is_no_part_of_a_caption(tmp_path: Path) -> None:
    mark = codecs.BOM_UTF8
    for member in (("a.txt", mark + b"A dog"), ("a.json", mark + b'{"caption": "A dog"}')):
        shard = write(tmp_path / "s.tar", [("a.webp", picture()), member])
        assert read_shards(shard)[0].captions == ("A dog",)


def test_what_is_no_shard(tmp_path: Path) -> None:
    tar = write(tmp_path / "good.tar", whole("a")).read_bytes()
    nothing = write(tmp_path / "nothing.tar", [("README", b"x")]).read_bytes()
    for content, message in (
        (b"no tar at all " * 100, "is no uncompressed tar, or is cut off"),
        (b"", "is no uncompressed tar, or is cut off"),
        (gzip.compress(tar), "is no uncompressed tar, or is cut off"),
        (tar + tar, "goes on behind its end mark"),
        (nothing, "holds no photograph"),
    ):
        (tmp_path / "bad.tar").write_bytes(content)
        with pytest.raises(ValueError, match=rf"bad\.tar {message}"):
            read_shards([tmp_path / "good.tar", tmp_path / "bad.tar"])
