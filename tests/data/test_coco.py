from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from data.captioned import Captioned
from data.coco import read_captions
from data.photographs import Photograph

TEXTS = {"a.jpg": ["A dog .", "Ein Hund über Bord, froh"], "b.jpg": ["A cat, asleep"]}
IDS = {"a.jpg": 7, "b.jpg": 9}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(("a.jpg", "b.jpg", "c.jpg")):
        Image.new("RGB", (8, 6), (90 * number, 10, 10)).save(tmp_path / name)
    (tmp_path / "damaged.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:-200])
    return tmp_path


def write(folder: Path, content: str | bytes | dict[str, Any], name: str = "captions") -> Path:
    path = folder / name
    text = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def coco(**changes: Any) -> dict[str, Any]:
    rows = [{"image_id": IDS[n], "caption": c} for n, texts in TEXTS.items() for c in texts]
    images = [{"id": number, "file_name": name, "width": 8} for name, number in IDS.items()]
    return {"info": {}, "images": images, "annotations": rows} | changes


def karpathy(*images: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {
        "images": [
            {"filename": name, "split": split, "sentences": [{"raw": t} for t in TEXTS[name]]}
            | more
            for name, split in images
        ],
        "dataset": "flickr8k",
    }


TOKEN = "a.jpg#0\tA dog .\na.jpg#1\t Ein Hund über Bord, froh\nb.jpg#0\tA cat, asleep\n"
KINDS: dict[str, str | bytes | dict[str, Any]] = {
    "coco": coco(),
    "karpathy": karpathy(("a.jpg", "train"), ("b.jpg", "restval")),
    "token": TOKEN,
    "token, BOM and CRLF": b"\xef\xbb\xbf" + TOKEN.replace("\n", "\r\n").encode(),
    "captions.txt": 'image,caption\na.jpg,A dog .\na.jpg,"Ein Hund über Bord, froh"\n'
    'b.jpg,"A cat, asleep"\n',
    "captions.txt, no quotes": "image,caption\na.jpg,A dog .\na.jpg,Ein Hund über Bord, froh\n"
    "b.jpg,A cat, asleep",
    "captions.txt, all in quotes": '"image","caption"\n"a.jpg","A dog ."\n'
    '"a.jpg","Ein Hund über Bord, froh"\n"b.jpg","A cat, asleep"\n',
    "results.csv": "image_name| comment_number| comment\na.jpg| 0| A dog .\n\n"
    "a.jpg| 1| Ein Hund über Bord, froh\nb.jpg| 0| A cat, asleep\n",
    "with commas": "image_name,comment_number,comment\na.jpg,0,A dog .\n"
    "a.jpg,1,Ein Hund über Bord, froh\nb.jpg,0,A cat, asleep\n",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_known_by_what_it_holds(folder: Path, kind: str) -> None:
    path = write(folder, KINDS[kind])
    split = "train" if kind == "karpathy" else None
    assert read_captions(path, max_broken=0) == [
        Photograph(name, folder / name, tuple(texts), "captions", split)  # type: ignore[arg-type]
        for name, texts in TEXTS.items()
    ]


def test_pictures_are_looked_up_in_all_folders(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two", "lists"):
        (tmp_path / name).mkdir()
    (folder / "a.jpg").rename(tmp_path / "one" / "a.jpg")
    (folder / "b.jpg").rename(tmp_path / "two" / "b.jpg")
    path = write(tmp_path / "lists", TOKEN)
    found = read_captions(path, [tmp_path / "one", str(tmp_path / "two")])
    assert [p.image for p in found] == [tmp_path / "one" / "a.jpg", tmp_path / "two" / "b.jpg"]
    by_folder = karpathy(("a.jpg", "train"), filepath="one")
    assert read_captions(write(tmp_path, by_folder), tmp_path)[0].name == "one/a.jpg"
    (tmp_path / "two" / "a.jpg").write_bytes(b"another")
    with pytest.raises(ValueError, match=r"a\.jpg in captions: several pictures in .*one, .*two"):
        read_captions(path, [tmp_path / "one", tmp_path / "two"])
    with pytest.raises(FileNotFoundError, match=r"no folder of pictures at '.*none'; check"):
        read_captions(path, tmp_path / "none")


def test_photographs_of_several_files_are_sorted_by_file_and_name(folder: Path) -> None:
    write(folder, "b.jpg#0\tA cat\na.jpg#0\tA dog", "1.token")
    write(folder, "c.jpg#0\tA cow", "0.token")
    found = read_captions(f"{folder}/{{0..1}}.token")
    assert [(p.file, p.name) for p in found] == [
        ("0.token", "c.jpg"), ("1.token", "a.jpg"), ("1.token", "b.jpg"),
    ]  # fmt: skip
    write(folder, "a.jpg#0\tA dog", "2.token")
    with pytest.raises(ValueError, match=r"1 of 3 .*a\.jpg in 2\.token: in several caption files"):
        read_captions(f"{folder}/*.token")


def also(name: object = "c.jpg", key: object = 3, *captions: object) -> dict[str, Any]:
    """Return COCO's file with another picture."""
    known = coco()
    known["images"].append({"id": key, "file_name": name})
    known["annotations"] += [{"image_id": key, "caption": c} for c in captions]
    return known


def test_places_without_a_name_are_of_their_file(folder: Path) -> None:
    write(folder, "a.jpg#0\tA dog\n???", "0.token")
    write(folder, "b.jpg#0\tA cat\n???", "1.token")
    with pytest.raises(
        ValueError, match=r"2 of 4 .*\(line 2 in 0\.token: no .*; line 2 in 1\.token: no picture's"
    ):
        read_captions(f"{folder}/*.token")


HEADER = "image,caption\na.jpg,A dog\nb.jpg,A cat\n"
BROKEN: list[tuple[str | bytes | dict[str, Any], str]] = [
    (also("nowhere.jpg", 3, "A cow"), "nowhere.jpg in captions: no picture in {folder}"),
    (also("../c.jpg", 3, "A cow"), "../c.jpg in captions: its picture is outside"),
    (also("/etc/c.jpg", 3, "A cow"), "/etc/c.jpg in captions: its picture is outside"),
    (also("c\0.jpg", 3, "A cow"), "c\0.jpg in captions: "),
    (also("x" * 300, 3, "A cow"), "x" * 300 + " in captions: "),
    (also("damaged.jpg", 3, "A cow"), "damaged.jpg in captions: image '{folder}/damaged.jpg' is"),
    (also("captions", 3, "A cow"), "captions in captions: image '{folder}/captions' is not"),
    (also("c.jpg", 3), "c.jpg in captions: no captions"),
    (also("c.jpg", 3, "A cow", " \n"), "c.jpg in captions: an empty caption"),
    (also("c.jpg", 3, "A cow", None), "c.jpg in captions: captions that are no list of texts"),
    (also("c.jpg", 3, "A cow \ud83d"), "c.jpg in captions: a caption that is not Unicode"),
    (also("\ud83d.jpg", 3, "A cow"), "\\ud83d.jpg in captions: a name that is not Unicode"),
    (also(None, 3), "image number 3 in captions: no file_name and id"),
    (also("c.jpg", None), "image number 3 in captions: no file_name and id"),
    (also("c.jpg", [3]), "image number 3 in captions: no file_name and id"),
    (coco(annotations=[*coco()["annotations"], {"image_id": [3]}]),
     "annotation number 4 in captions: no image_id"),
    (coco(annotations=[*coco()["annotations"], {"image_id": 1, "caption": "A cow"}]),
     "image id 1 in captions: its captions are there, it is not among the images"),
    (coco(annotations=[*coco()["annotations"], "A cow"]), "annotation number 4 in captions: no"),
    (karpathy(("a.jpg", "train"), ("b.jpg", "vaal")), "b.jpg in captions: split 'vaal', expected"),
    (karpathy(("a.jpg", "train"), ("b.jpg", ["train"])),  # type: ignore[arg-type]
     "b.jpg in captions: split ['train'], expected"),
    ({"images": [*karpathy(("a.jpg", "test"))["images"], {"filename": "b.jpg"}]},
     "image number 2 in captions: no filename and sentences"),
    (TOKEN + "c.jpg#0 A cow", "line 4 in captions: no picture's name in 'c.jpg#0 A cow'"),
    (TOKEN + "c.jpg#0\t", "c.jpg in captions: an empty caption"),
    (TOKEN.encode() + b"c.jpg#0\tA k\xfchn cow", "c.jpg in captions: line 4 is not UTF-8"),
    (TOKEN.encode() + b"k\xfchn.jpg#0\tA cow", "line 4 in captions: no picture's name in"),
    (HEADER + "c.jpg", "c.jpg in captions: line 4 cannot be read: 'c.jpg'"),
    ("\n\n" + TOKEN + "\r\nc.jpg A cow", "line 7 in captions: no picture's name in 'c.jpg A"),
    (HEADER + "\n,A cow", "line 5 in captions: no picture's name in ',A cow'"),
    (HEADER + 'c.jpg,"A cow\nc.jpg,A calf', "c.jpg in captions: line 4 cannot be read"),
    ("image_name| comment_number| comment\na.jpg| 0| A dog\nb.jpg| 0| A cat\nc.jpg| 4   A cow",
     "c.jpg in captions: line 4 cannot be read"),  # as line 20,000 of Flickr30k's file
]  # fmt: skip


@pytest.mark.parametrize(("content", "reason"), BROKEN)
def test_a_broken_photograph_is_skipped_and_named(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    content: str | bytes | dict[str, Any],
    reason: str,
) -> None:
    path = write(folder, content)
    with caplog.at_level(logging.WARNING):
        found = read_captions(path, folder, max_broken=0.7)
    assert [p.name for p in found] in (["a.jpg", "b.jpg"], ["a.jpg"])
    (record,) = caplog.records
    assert reason.format(folder=folder) in record.getMessage()
    assert record.getMessage().endswith("they are skipped")
    with pytest.raises(ValueError, match=r"more than max_broken=0\.3; mend .*read\.pictures="):
        read_captions(path, folder, max_broken=0.3)


@pytest.mark.parametrize(
    ("also_listed", "reason"),
    [
        ({"id": 3, "file_name": "a.jpg"}, "a.jpg in captions: listed twice"),
        ({"id": 7, "file_name": "c.jpg"}, "a.jpg in captions: another picture has its id 7"),
    ],
)
def test_a_picture_or_an_id_that_comes_twice_is_broken(
    folder: Path, also_listed: dict[str, Any], reason: str
) -> None:
    path = write(folder, coco(images=[*coco()["images"], also_listed]))
    assert [p.name for p in read_captions(path, max_broken=0.7)] == ["b.jpg"]
    with pytest.raises(ValueError, match=reason):
        read_captions(path)


NO_CAPTION_FILE: list[tuple[str | bytes, str]] = [
    (b"", "captions is empty; expected COCO's"),
    (b" \n\xef\xbb\xbf"[2:], "captions is empty; expected COCO's"),
    ("image,caption\n", "captions lists no picture; expected"),
    ('{"images": [], "annotations": [{"caption": "a"', "is no JSON that can be read, or is cut"),
    ("[" * 100_000, "is no JSON that can be read, or is cut"),
    ('{"images": [' + "9" * 5_000 + "]}", "captions is no JSON that can be read, or is cut"),
    (b'{"images": "\xff"}', r"captions is not UTF-8 \(invalid start byte at byte 12\)"),
    ('["a dog"]', "is JSON without a list of images; expected COCO's"),
    ('{"images": {}}', "is JSON without a list of images; expected COCO's"),
    ('{"images": [], "annotations": []}', "has images without captions, as instances_"),
    ('{"images": [{"id": 1, "file_name": "a.jpg"}]}', "has images without captions, as inst"),
    ('{"images": [{"id": 1}], "annotations": [{"bbox": []}]}', "has images without captions"),
    ("image,caption\na.jpg,é".encode("utf-16"), "captions is UTF-16; save it as UTF-8"),
    ("a.jpg,A dog\n", "captions begins with 'a.jpg,A dog'; expected COCO's"),
    ("caption,image\nA dog,a.jpg", "captions begins with 'caption,image'; expected"),
    ('image,"caption\na.jpg,A dog', "captions begins with 'image,\"caption'; expected"),
    (b"PK\x03\x04\xff\x00", r"captions begins with 'PK\\x03\\x04\\udcff\\x00'; expected"),
]


@pytest.mark.parametrize(("content", "message"), NO_CAPTION_FILE)
def test_what_is_no_caption_file(folder: Path, content: str | bytes, message: str) -> None:
    path = write(folder, content)
    with pytest.raises(ValueError, match=message) as error:
        read_captions(path)
    assert "\n" not in str(error.value)


def test_what_is_asked_for_wrongly(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no caption file at '.*none\.json'; check"):
        read_captions(folder / "none.json")
    with pytest.raises(ValueError, match=r"max_broken=1: expected a share in \[0, 1\)"):
        read_captions(write(folder, TOKEN), max_broken=1)
    with pytest.raises(ValueError, match=r"read\.pictures is an empty list; name a folder"):
        read_captions(write(folder, TOKEN), [])


def test_all_pictures_missing_says_which_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"2 of 2 .*no picture in .*empty; .*read\.pictures="):
        read_captions(write(folder, TOKEN), tmp_path / "empty")


def test_a_caption_file_becomes_requests(tmp_path: Path) -> None:
    lines = ["image,caption"]
    for number in range(12):
        Image.new("RGB", (40, 30), (20 * number, 0, 0)).save(tmp_path / f"{number}.png")
        lines += [f"{number}.png,A {'dog' if number % 2 else 'cat'} ." for _ in range(5)]
    Image.new("RGB", (40, 30), (20, 0, 0)).save(tmp_path / "copy.png")
    path = write(tmp_path, "\n".join([*lines, "copy.png,The same dog"]))
    made = Captioned(train=str(path), test=None, read=read_captions, development=3)
    splits = {s: made.requests(s) for s in ("train", "calibration", "test")}  # type: ignore[arg-type]
    pictures = {s: {r.tags["picture"] for r in made.captions(s)} for s in splits}  # type: ignore[arg-type]
    assert {s: len(p) for s, p in pictures.items()} == {"train": 8, "calibration": 3, "test": 1}
    assert len(set.union(*pictures.values())) == 12  # copy.png is 1.png
    texts = {r.text for s in pictures for r in made.captions(s) if r.entity == "1.png"}  # type: ignore[arg-type]
    assert texts == {"A dog .", "The same dog"}
    stored = {r.image for r in splits["train"] if isinstance(r.image, Path)}
    assert stored == {tmp_path / name for name in pictures["train"]}


def test_karpathys_splits_are_kept(folder: Path) -> None:
    known = karpathy(("a.jpg", "train"), ("b.jpg", "test"))
    for name in ("c.jpg", "d.jpg", "e.jpg"):
        Image.new("RGB", (8, 6), name.replace("c.jpg", "red").replace("d.jpg", "blue")
                  .replace("e.jpg", "green")).save(folder / name)  # fmt: skip
        image = {"filename": name, "split": "val", "sentences": [{"raw": "A cow"}]}
        known["images"].append(image)
    made = Captioned(train=str(write(folder, known)), test=None, read=read_captions, development=2)
    assert {r.entity for r in made.captions("test")} == {"b.jpg"}
    assert len({r.entity for r in made.captions("train")}) == 2
    path = str(folder / "captions")
    both = Captioned(train=path, test="other", read=read_captions)
    with pytest.raises(ValueError, match=r"says itself which .*give data\.source\.test=null"):
        both.requests("train")
    (tmp := folder / "lists").mkdir()
    read = partial(read_captions, pictures=folder)
    turned = Captioned(train=str(write(tmp, "a.jpg#0\tA dog")), test=path, read=read)
    with pytest.raises(ValueError, match=r"data\.source\.test says .* 4 photographs are not"):
        turned.requests("train")


def test_splits_that_are_not_read_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(folder, b"image,split,caption\na.jpg,test,A dog\n")
    with caplog.at_level(logging.WARNING):
        assert read_captions(path)[0].split is None
    assert "its column 'split' is not read" in caplog.text
