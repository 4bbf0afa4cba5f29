from __future__ import annotations

import base64
import errno
import hashlib
import io
import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from data import picture_sources
from data.broken_lines import BrokenError
from data.picture_sources import BAD_DATA_URL, NO_FILE, OUTSIDE, UNREADABLE, PictureSources
from data.picture_urls import DEAD, NOT_ALLOWED, TOO_LARGE
from keynet.pictures import open_image


def png(colour: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(buffer, "PNG")
    return buffer.getvalue()


RED = png("red")
DIGEST = hashlib.sha256(RED).hexdigest()
DATA_URL = f"data:image/png;base64,{base64.b64encode(RED).decode()}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "a log"
    (folder / "pictures").mkdir(parents=True)
    (folder / "pictures" / "a red.png").write_bytes(RED)
    (tmp_path / "outside.png").write_bytes(RED)
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> PictureSources:
    return PictureSources(kept=tmp_path / "kept", max_mb=0.01)


def test_a_picture_is_kept_once_however_it_is_named(log: Path, sources: PictureSources) -> None:
    file = log / "pictures" / "a red.png"
    names = [
        DATA_URL, DATA_URL.replace("png;", "PNG;"), f"data:,{quote(RED)}", "pictures/a red.png",
        "./pictures/../pictures/a red.png", str(file), f"file://{quote(str(file))}",
        "file://pictures/a%20red.png", "file:pictures/a%20red.png",
    ]  # fmt: skip
    found = [sources.load(name, log) for name in names]
    assert set(found) == {(DIGEST, sources.kept / DIGEST[:2] / DIGEST)}
    assert found[0][1].read_bytes() == RED
    assert [path for path in sources.kept.rglob("*") if path.is_file()] == [found[0][1]]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("data:image/png;base64,%%%", BAD_DATA_URL), ("data:image/png;base64", BAD_DATA_URL),
        ("data:image/png;base64,aGVsbG8", BAD_DATA_URL),
        ("data:image/png;base64,aGVsbG8=", UNREADABLE), ("data:,", UNREADABLE),
        ("data:image/png;base64," + "A" * 20_000, TOO_LARGE), ("data:," + "A" * 10_001, TOO_LARGE),
        ("none.png", NO_FILE), ("pictures", NO_FILE), ("", NO_FILE), ("a\0b", NO_FILE),
        ("x" * 5000, NO_FILE), ("../outside.png", OUTSIDE), ("/etc/hostname", OUTSIDE),
        ("file:///etc/hostname", OUTSIDE), ("http://a.test/x.png", NOT_ALLOWED),
        ("HTTPS://a.test/x.png", NOT_ALLOWED),
    ],
)  # fmt: skip
def test_what_is_broken(log: Path, sources: PictureSources, name: str, reason: str) -> None:
    with pytest.raises(BrokenError) as error:
        sources.load(name, log)
    assert error.value.reason == reason
    assert not sources.kept.exists()


def test_a_link_out_of_the_folder_is_outside(log: Path, sources: PictureSources) -> None:
    (log / "link.png").symlink_to(log.parent / "outside.png")
    with pytest.raises(BrokenError) as error:
        sources.load("link.png", log)
    assert error.value.reason == OUTSIDE


def test_a_loop_of_links_is_no_file(log: Path, sources: PictureSources) -> None:
    (log / "a.png").symlink_to(log / "b.png")
    (log / "b.png").symlink_to(log / "a.png")
    with pytest.raises(BrokenError) as error:
        sources.load("a.png", log)
    assert error.value.reason == NO_FILE


def test_a_pipe_and_a_huge_file_are_not_read(log: Path, sources: PictureSources) -> None:
    os.mkfifo(log / "pipe.png")
    with pytest.raises(BrokenError) as error:
        sources.load("pipe.png", log)
    assert error.value.reason == NO_FILE
    with (log / "huge.png").open("wb") as file:
        file.truncate(10**11)  # reading it would end in a MemoryError
    with pytest.raises(BrokenError) as error:
        sources.load("huge.png", log)
    assert error.value.reason == TOO_LARGE


def test_a_url_is_fetched_once(
    log: Path, sources: PictureSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch(url: str, **_: object) -> bytes:
        asked.append(url)
        return RED

    monkeypatch.setattr(picture_sources, "fetch", fetch)
    for _ in range(2):  # the second as another process
        allowing = PictureSources(kept=sources.kept, allow_hosts=["a.test"])
        assert allowing.load("http://a.test/x.png", log)[0] == DIGEST
    assert asked == ["http://a.test/x.png"]
    allowing.load("http://a.test/x.png", log)[1].unlink()
    assert allowing.load("http://a.test/x.png", log)[1].read_bytes() == RED
    assert len(asked) == 2
    with pytest.raises(BrokenError) as error:  # what was fetched once is not allowed for ever
        sources.load("http://a.test/x.png", log)
    assert error.value.reason == NOT_ALLOWED


def test_a_dead_url_is_asked_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(url: str, **_: object) -> bytes:
        asked.append(url)
        raise BrokenError(DEAD)

    monkeypatch.setattr(picture_sources, "fetch", fetch)
    sources = PictureSources(allow_hosts=["a.test"])
    for _ in range(2):
        with pytest.raises(BrokenError, match=DEAD):
            sources.load("http://a.test/x.png", log)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"allow_hosts": "a.test"}, r"allow_hosts='a.test': expected a list, as \[a.test\]"),
        ({"max_mb": 0}, "max_mb=0: expected more than 0"),
        ({"seconds": float("nan")}, "seconds=nan: expected more than 0"),
    ],
)
def test_settings_out_of_range(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PictureSources(**settings)


def test_a_folder_that_cannot_be_written_is_told(log: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sources = PictureSources(kept=tmp_path / "file")
    with pytest.raises(OSError, match=r"cannot be written .*data.source.pictures.kept"):
        sources.load(DATA_URL, log)


def test_a_kept_file_that_was_cut_short_is_mended(
    log: Path, sources: PictureSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture_sources, "fetch", lambda *_, **__: RED)
    allowing = PictureSources(kept=sources.kept, allow_hosts=["a.test"])
    for url in (DATA_URL, "http://a.test/x.png"):
        for damaged in (b"", RED[:20], bytes(len(RED))):
            path = allowing.load(url, log)[1]
            path.write_bytes(damaged)
            assert allowing.load(url, log)[1].read_bytes() == RED
    (named,) = (sources.kept / "urls").iterdir()
    for damaged in (b"", bytes(64), b"\xff" * 64, b"../" * 40):
        named.write_bytes(damaged)
        assert allowing.load("http://a.test/x.png", log)[0] == DIGEST
        assert named.read_text() == DIGEST


def test_a_full_disk_is_told_and_leaves_nothing(
    log: Path, sources: PictureSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\); make room"):
        sources.load(DATA_URL, log)
    assert [path for path in sources.kept.rglob("*") if path.is_file()] == []


def test_several_processes_keep_the_same_pictures(log: Path, sources: PictureSources) -> None:
    urls = [
        f"data:image/png;base64,{base64.b64encode(png(f'#{n:06x}')).decode()}" for n in range(40)
    ]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: [sources.load(url, log) for url in urls], range(4)))
    assert all(one == found[0] for one in found) and len(set(found[0])) == 40
    assert len([path for path in sources.kept.rglob("*") if path.is_file()]) == 40


def encoded(kind: str, image: Image.Image, **settings: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **settings)
    return buffer.getvalue()


def bomb(side: int) -> bytes:
    """A PNG that says it has side x side pixels."""
    content = bytearray(encoded("PNG", Image.new("L", (1, 1))))
    content[16:24] = struct.pack(">II", side, side)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (bomb(8001), "8,001 x 8,001 pixels, more than 64,000,000"),
        (bomb(9600), "9,600 x 9,600 pixels, more than 64,000,000"),
        (bomb(60_000), "3600000000 pixels, more than 64,000,000"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "not an image that can be read"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99), "not an image that can be read"),
        (encoded("TIFF", Image.new("F", (4, 4))), "floating point pixels"),
        (RED[:-20], "damaged or cut short"),
    ],
)
def test_pictures_that_are_not_served_are_broken(
    log: Path, sources: PictureSources, content: bytes, detail: str
) -> None:
    url = f"data:,{quote(content)}"
    with pytest.raises(BrokenError) as error:
        sources.load(url, log)
    assert error.value.reason == UNREADABLE and detail in error.value.detail
    assert not sources.kept.exists()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded("JPEG", Image.new("RGB", (9, 4), "red"), exif=exif)


@pytest.mark.parametrize(
    ("content", "size"),
    [
        (encoded("GIF", Image.new("RGB", (9, 4)), save_all=True,
                 append_images=[Image.new("RGB", (9, 4), "red")]), (9, 4)),
        (encoded("JPEG", Image.new("CMYK", (9, 4))), (9, 4)),
        (encoded("PNG", Image.new("I;16", (9, 4))), (9, 4)),
        (turned(), (4, 9)),  # upright, as in serving: keynet.pictures is all that decodes
    ],
    ids=["animated", "CMYK", "16 bits", "turned by EXIF"],
)  # fmt: skip
def test_pictures_of_all_kinds_are_kept_as_they_are(
    log: Path, sources: PictureSources, content: bytes, size: tuple[int, int]
) -> None:
    path = sources.load(f"data:,{quote(content)}", log)[1]
    assert path.read_bytes() == content
    assert open_image(path).size == size
