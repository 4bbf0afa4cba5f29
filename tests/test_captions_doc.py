"""The walk of docs/captions.md, on drawings: its commands, and what they find."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from PIL import Image, ImageDraw

from data.captioned import Captioned
from keynet.training.config import register

ROOT = Path(__file__).parents[1]
RUNS = ("docs/captions.md",)
SMALL_SPLIT = "data.source.development=12"
PETS = {
    "dog": ["A dog runs .", "Two dogs", "The dog and a ball", "A puppy", "One brown dog"],
    "cat": ["A cat sleeps .", "The cat", "Cats at home", "A kitten", "A cat" + " by a wall" * 30],
}

Documented = Callable[[str], list[list[str]]]
Walk = Callable[..., subprocess.CompletedProcess[str]]


def drawing(number: int) -> bytes:
    picture, buffer = Image.new("RGB", (48, 40), (5 * number, 90, 60)), io.BytesIO()
    ImageDraw.Draw(picture).ellipse((4, 4, 12 + number % 24, 30), fill="white")
    picture.save(buffer, "PNG")
    return buffer.getvalue()


NAMES = [f"{pet}{number}.png" for number in range(24) for pet in PETS]
PICTURES = {name: drawing(number) for number, name in enumerate(NAMES)}


def captions(name: str) -> list[str]:
    return PETS[name[:3]]


def write_coco(path: Path, names: list[str]) -> None:
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    rows = [{"image_id": n, "caption": c} for n, name in enumerate(names) for c in captions(name)]
    path.write_text(json.dumps({"images": images, "annotations": rows}))


def write_shard(path: Path, names: list[str]) -> None:
    with tarfile.open(path, "w") as shard:
        for name in names:
            described = json.dumps({"captions": captions(name)}).encode()
            stem = name.removesuffix(".png")
            for member, content in ((name, PICTURES[name]), (f"{stem}.json", described)):
                info = tarfile.TarInfo(member)
                info.size = len(content)
                shard.addfile(info, io.BytesIO(content))


def write_parquet(folder: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    def images(names: list[str]) -> list[dict[str, object]]:
        return [{"bytes": PICTURES[name], "path": name} for name in names]

    for split, names in (("train", NAMES[:38]), ("test", NAMES[38:])):
        columns = {"image": images(names), "captions": [captions(name) for name in names]}
        pq.write_table(pa.table(columns), folder / f"{split}-00000-of-00001.parquet")
    asked = {
        "image": images(NAMES * 2),
        "question": ["What is it?"] * len(NAMES) + ["Which pet?"] * len(NAMES),
        "answer": [name[:3] for name in NAMES] * 2,
    }
    pq.write_table(pa.table(asked), folder / "questions-0.parquet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a reader has."""
    places = ("flickr/Images", "karpathy", "coco/annotations", "coco/train2017", "coco/val2017",
              "shards", "hub")  # fmt: skip
    for place in places:
        (tmp_path / place).mkdir(parents=True)
    for number, (name, content) in enumerate(PICTURES.items()):
        (tmp_path / "flickr/Images" / name).write_bytes(content)
        coco = "train2017" if number < 38 else "val2017"
        (tmp_path / "coco" / coco / name).write_bytes(content)
    lines = [f"{name},{caption}" for name in NAMES for caption in captions(name)]
    (tmp_path / "flickr/captions.txt").write_text("\n".join(["image,caption", *lines]))
    described = [
        {
            "filename": name,
            "split": ("train", "val", "test", "train")[number % 4],
            "sentences": [{"raw": caption} for caption in captions(name)],
        }
        for number, name in enumerate(NAMES)
    ]
    (tmp_path / "karpathy/dataset_flickr8k.json").write_text(json.dumps({"images": described}))
    write_coco(tmp_path / "coco/annotations/captions_train2017.json", NAMES[:38])
    write_coco(tmp_path / "coco/annotations/captions_val2017.json", NAMES[38:])
    write_shard(tmp_path / "shards/train-00.tar", NAMES[:20])
    write_shard(tmp_path / "shards/train-01.tar", NAMES[20:38])
    write_shard(tmp_path / "shards/val-00.tar", NAMES[38:44])
    write_shard(tmp_path / "shards/val-01.tar", NAMES[44:])
    write_parquet(tmp_path / "hub")
    return tmp_path


def test_the_data_of_every_profile_is_read(
    folder: Path, documented: Documented, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COCO", raising=False)
    counts = []
    for words in documented(RUNS[0]):
        if words[2:3] != ["scripts.profile_data"] or "data=chat_log" in words:
            continue
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            cfg = compose("profile_data", overrides=[*words[3:], SMALL_SPLIT, "out=there"])
        source = instantiate(cfg.data.source)
        assert isinstance(source, Captioned)
        entities = {
            split: {r.entity for r in source.captions(split)}
            for split in ("train", "calibration", "test")
        }
        assert len(set.union(*entities.values())) == sum(map(len, entities.values())) == 48
        assert all(source.requests(split) for split in entities)
        counts.append(len(entities["test"]))
    assert counts == [11, 12, 10, 10, 10]  # cut, Karpathy's, three of two files each


@pytest.mark.parametrize("name", ["coco", "parquet", "webdataset", "flickr8k"])
def test_each_reader_is_given_what_it_takes(name: str) -> None:
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        data = compose("train", overrides=[f"data={name}", "data.source.test=null"]).data
    read = instantiate(data.source.read, paths="there")
    options = {option for option in data.source.read if not option.startswith("_")}
    assert options | {"paths"} == set(signature(read.func).parameters)
    assert (data.source.name, data.source.test) == (name, None)
    assert data.long_text == ("error" if name == "flickr8k" else "fold")


@pytest.mark.slow
def test_the_walk(
    folder: Path, documented: Documented, walk: Walk, small: dict[str, tuple[str, ...]]
) -> None:
    of_run = [o for o in small["run"] if not o.startswith(("data=", "data.source."))]
    for words in documented(RUNS[0]):
        options = (
            [] if "data=chat_log" in words or "experiment=chat_log" in words else [SMALL_SPLIT]
        )
        if words[1] == "train.py":
            options += [*of_run, "trainer=cpu", "export.formats=[]"]
        if words[2] == "scripts.write_question_log":
            options = []
        walk(words, options)
    reports = {path.parent.parent.name for path in folder.glob("outputs/smoke/*/*/report.json")}
    assert reports == {"coco", "webdataset", "parquet", "chat_log"}
    assert len((folder / "QUESTIONS.jsonl").read_text().splitlines()) == 96
