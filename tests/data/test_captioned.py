from __future__ import annotations

import hashlib
import io
import json
import logging
import tarfile
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.captioned import (
    EVALUATED,
    NOUNS,
    PHRASINGS,
    TRAIN_PHRASINGS,
    Captioned,
    label_nouns,
)
from data.requests import CaptionedSource
from data.webdataset import read_shards
from keynet.types import Request

SPLITS = ("train", "calibration", "test")
DEVELOPMENT = 20
# Five captions a scene.
SCENES = {
    "dog": ["A dog runs on the beach .", "Two dogs on a beach", "Dogs at the beach .", "A puppy .",
            "The brown dog plays in the sand on the beach ."],
    "guitar": ["A man plays a guitar .", "The man with his guitar", "Men with guitars in a bar",
               "A man sings .", "A man in black plays the guitar ."],
    "horse": ["A woman on a horse .", "A lady rides a brown horse .", "Horse and woman .",
              "The woman wears red .", "A woman riding ."],
    "table": ["Cups on a table .", "A table with food .", "Food on the table .", "A meal .",
              "Dinner is on the table ."],
}  # fmt: skip


def photo(colour: tuple[int, int, int], encoding: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (24, 18), colour).save(buffer, encoding)
    return buffer.getvalue()


def write_shard(path: Path, photographs: dict[str, list[str]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, captions in photographs.items():
            colour = tuple(hashlib.sha256(name.encode()).digest()[:3])
            sides = (("png", photo(colour)), ("json", json.dumps({"captions": captions}).encode()))  # type: ignore[arg-type]
            for extension, content in sides:
                member = tarfile.TarInfo(f"{name}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def scenes(prefix: str, each: int) -> dict[str, list[str]]:
    return {f"{prefix}_{kind}{i}": c for kind, c in SCENES.items() for i in range(each)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards")
    write_shard(path / "train-00.tar", scenes("a", 9))
    write_shard(path / "train-01.tar", scenes("b", 8))
    write_shard(path / "val.tar", scenes("t", 5))
    return path


def source(folder: Path, **changes: object) -> Captioned:
    settings: dict[str, object] = {
        "train": f"{folder}/train-*.tar",
        "test": [f"{folder}/val.tar"],
        "read": read_shards,
        "development": DEVELOPMENT,
    }
    return Captioned(**settings | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def splits(folder: Path) -> dict[str, list[Request]]:
    made = source(folder)
    return {split: made.requests(split) for split in SPLITS}  # type: ignore[arg-type]


def of_nouns(requests: list[Request]) -> list[Request]:
    return [r for r in requests if r.tags["family"] == "is_there"]


def test_labels_of_the_scenes() -> None:
    labels = {kind: label_nouns(captions) for kind, captions in SCENES.items()}
    shown = {kind: {n for n, yes in known.items() if yes} for kind, known in labels.items()}
    assert shown == {
        "dog": {"dog", "beach"},
        "guitar": {"man", "guitar", "person"},
        "horse": {"woman", "horse", "person"},
        "table": {"table"},
    }
    assert labels["table"]["dog"] is labels["guitar"]["horse"] is labels["dog"]["woman"] is False
    assert "sand" not in labels["dog"]  # one caption names it


def test_photographs_of_the_splits(folder: Path, splits: dict[str, list[Request]]) -> None:
    names = {split: {r.tags["picture"] for r in requests} for split, requests in splits.items()}
    every = {*scenes("a", 9), *scenes("b", 8)}
    by_hash = sorted(every, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    assert names["calibration"] <= set(by_hash[:DEVELOPMENT])
    assert names["train"] == set(by_hash[DEVELOPMENT:])
    assert names["test"] <= set(scenes("t", 5))
    development = {r.entity for r in source(folder).captions("development")}
    assert development == set(by_hash[:DEVELOPMENT])


def test_each_visit_has_its_own_encoding(splits: dict[str, list[Request]]) -> None:
    visits: dict[str, dict[int, object]] = defaultdict(dict)
    for r in splits["train"]:
        visits[r.tags["picture"]][id(r.image)] = r.image
    for name, images in visits.items():
        first, second = images.values()
        assert first == photo(tuple(hashlib.sha256(name.encode()).digest()[:3]))  # type: ignore[arg-type]
        assert isinstance(second, bytes) and second != first
        assert 96 <= max(Image.open(io.BytesIO(second)).size) <= 192


@pytest.mark.parametrize("visits", [1, 2, 7])
def test_captions_are_spread_over_the_visits(folder: Path, visits: int) -> None:
    made = source(folder, visits=visits, questions=0).requests("train")
    assert {r.tags["family"] for r in made} == {"caption"}
    texts: dict[str, list[str | None]] = defaultdict(list)
    images: dict[str, Counter[object]] = defaultdict(Counter)
    for r in made:
        texts[r.tags["picture"]].append(r.text)
        images[r.tags["picture"]][r.image] += 1
    every = scenes("a", 9) | scenes("b", 8)
    for name, written in texts.items():
        assert len(written) == max(visits, 5)
        assert set(written) == set(every[name])
        assert sorted(images[name].values()) == {1: [5], 2: [2, 3], 7: [1] * 7}[visits]


def test_a_visit_asks_the_same_nouns_in_another_phrasing(
    splits: dict[str, list[Request]],
) -> None:
    for split, requests in splits.items():
        asked: dict[tuple[str, str], list[Request]] = defaultdict(list)
        for r in of_nouns(requests):
            asked[r.tags["picture"], r.tags["argument"]].append(r)
        assert len(asked) > 20, split
        for first, second in asked.values():
            assert first.group == second.group
            assert first.image != second.image
            assert first.tags["phrasing"] != second.tags["phrasing"]


def test_calibration_and_test_ask_about_nouns_only(splits: dict[str, list[Request]]) -> None:
    for split in ("calibration", "test"):
        assert of_nouns(splits[split]) == splits[split]
        nouns: dict[str, set[str]] = defaultdict(set)
        for r in splits[split]:
            nouns[r.tags["picture"]].add(r.tags["argument"])
        assert max(map(len, nouns.values())) <= EVALUATED
        assert np.mean([len(found) for found in nouns.values()]) > 2


def test_yes_and_no_are_balanced_for_each_noun(splits: dict[str, list[Request]]) -> None:
    for split, requests in splits.items():
        counts = Counter((r.tags["argument"], r.response) for r in of_nouns(requests))
        assert {noun for noun, _ in counts} >= {"dog", "man", "woman", "horse"}, split
        assert all(counts[noun, "yes"] == counts[noun, "no"] for noun, _ in counts), split


def test_the_answer_is_what_the_captions_say(splits: dict[str, list[Request]]) -> None:
    every = scenes("a", 9) | scenes("b", 8) | scenes("t", 5)
    for requests in splits.values():
        for r in of_nouns(requests):
            noun = r.tags["argument"]
            assert (r.response == "yes") is label_nouns(every[r.entity or ""])[noun]
            thing = f"{NOUNS[noun]['article']} {noun}".strip()
            number = int(r.tags["phrasing"].removeprefix("en/is_there/"))
            assert r.text == PHRASINGS[number].format(thing=thing, noun=noun)


def test_articles() -> None:
    written = {n: f"{NOUNS[n]['article']} {n}".strip() for n in ("dog", "umbrella", "water")}
    written["sunglasses"] = f"{NOUNS['sunglasses']['article']} sunglasses"
    assert set(written.values()) == {"a dog", "an umbrella", "water", "a pair of sunglasses"}
    assert PHRASINGS[0].format(thing=written["water"], noun="water") == "is there water?"


def test_held_out_phrasings_are_never_trained_on(splits: dict[str, list[Request]]) -> None:
    assert len(PHRASINGS) == len({p.lower().strip("?") for p in PHRASINGS}) == 8
    numbers = {s: {r.tags["phrasing"] for r in of_nouns(splits[s])} for s in SPLITS}
    assert numbers["train"] == {f"en/is_there/{n}" for n in range(TRAIN_PHRASINGS)}
    held_out = {f"en/is_there/{n}" for n in range(TRAIN_PHRASINGS, 8)}
    assert numbers["calibration"] == numbers["test"] == held_out
    texts = {s: {r.text for r in of_nouns(splits[s])} for s in SPLITS}
    assert not texts["train"] & (texts["calibration"] | texts["test"])
    assert Captioned.disjoint_phrasings


def test_what_every_source_promises(splits: dict[str, list[Request]]) -> None:
    for requests in splits.values():
        of_group: dict[str | None, set[tuple[str | None, str | None]]] = defaultdict(set)
        for r in requests:
            assert None not in (r.image, r.text, r.group, r.entity, r.intent, r.response)
            tags = {"picture", "family", "phrasing", "negated", "argument"}
            assert tags <= set(r.tags)
            assert r.entity == r.tags["picture"]
            assert r.tags["negated"] == "0"
            of_group[r.group].add((r.intent, r.response))
            if r.tags["family"] == "is_there":
                assert r.intent == f"is_there({r.tags['argument']})|en"
                assert r.group == f"{r.intent}|{r.response}"
                assert r.tags["language"] == "en"
            else:
                assert r.group == r.intent == f"caption|{r.entity}"
        assert all(len(found) == 1 for found in of_group.values())


def test_captions_for_retrieval(folder: Path) -> None:
    made = source(folder)
    for split, count in (("development", DEVELOPMENT), ("test", 20)):
        requests = made.captions(split)  # type: ignore[arg-type]
        assert len(requests) == 5 * count
        images: dict[str | None, set[int]] = defaultdict(set)
        for r in requests:
            images[r.entity].add(id(r.image))
        assert len(images) == count
        assert all(len(objects) == 1 for objects in images.values())
    first = made.captions("test")[:5]
    assert {r.group for r in first} == {"caption|t_dog0"}
    assert [r.text for r in first] == SCENES["dog"]
    assert made.captions("calibration") == made.captions("development")
    with pytest.raises(ValueError, match="split 'val': expected development or one of"):
        made.captions("val")  # type: ignore[arg-type]


def test_captions_of_the_training_are_its_requests(
    folder: Path, splits: dict[str, list[Request]]
) -> None:
    made = source(folder)
    assert isinstance(made, CaptionedSource)
    captions = made.captions("train")
    assert captions == [r for r in splits["train"] if r.tags["family"] == "caption"]
    first, again = made.requests("train"), made.requests("train")
    assert first is not again and first[0].image is again[0].image  # encoded once


def test_the_same_seed_gives_the_same_requests(
    folder: Path, splits: dict[str, list[Request]]
) -> None:
    other = source(folder, seed=1)
    for split in SPLITS:
        assert source(folder).requests(split) == splits[split]  # type: ignore[arg-type]
        made = other.requests(split)  # type: ignore[arg-type]
        assert made != splits[split]
        if split == "train":  # the seed does not cut the splits
            assert {r.entity for r in made} == {r.entity for r in splits[split]}
            assert {r.image for r in made} != {r.image for r in splits[split]}


def test_a_visit_does_not_depend_on_other_photographs(
    tmp_path: Path, splits: dict[str, list[Request]]
) -> None:
    few = {name: captions for name, captions in scenes("b", 8).items() if "dog" not in name}
    write_shard(tmp_path / "train-0.tar", few)
    write_shard(tmp_path / "val.tar", scenes("t", 1))
    made = source(tmp_path, development=2, fold="dev").requests("train")
    images: dict[str | None, set[object]] = defaultdict(set)
    captions: dict[str | None, set[tuple[object, str | None]]] = defaultdict(set)
    for r in splits["train"]:
        images[r.entity].add(r.image)
        captions[r.entity].add((r.image, r.text))
    compared = [r for r in made if r.entity in images]
    assert len({r.entity for r in compared}) > 5
    for r in compared:
        assert r.image in images[r.entity]
        assert r.tags["family"] != "caption" or (r.image, r.text) in captions[r.entity]


def test_the_dev_fold_develops_on_the_photographs_of_the_calibration(
    folder: Path, splits: dict[str, list[Request]]
) -> None:
    made = source(folder, fold="dev", name="photos")
    assert made.name == "photos_dev" and source(folder, name="photos").name == "photos"
    assert made.requests("train") == splits["train"]
    halves = {s: {r.entity for r in made.requests(s)} for s in ("calibration", "test")}  # type: ignore[arg-type]
    assert not halves["calibration"] & halves["test"]
    development = {r.entity for r in made.captions("development")}
    assert halves["calibration"] | halves["test"] <= development
    assert all(5 < len(half) <= DEVELOPMENT // 2 for half in halves.values())
    captioned = {s: {r.entity for r in made.captions(s)} for s in ("calibration", "test")}  # type: ignore[arg-type]
    assert not captioned["calibration"] & captioned["test"]
    assert captioned["calibration"] | captioned["test"] == development
    assert all(halves[s] <= captioned[s] for s in halves)


@pytest.mark.parametrize("fold", ["test", "dev"])
def test_a_photograph_tested_on_is_not_trained_on(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, fold: str
) -> None:
    write_shard(tmp_path / "val.tar", scenes("t", 1) | scenes("b", 1))
    with caplog.at_level(logging.WARNING):
        made = source(folder, test=f"{tmp_path}/val.tar", fold=fold)
        training = {r.entity for r in made.requests("train")}
    development = {r.entity for r in made.captions("development")}
    if fold == "test":
        tested = {r.entity for r in made.captions("test")}
        assert tested == {*scenes("t", 1), *scenes("b", 1)}
    assert training | development == {*scenes("a", 9), *scenes("b", 8)} - {*scenes("b", 1)}
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith("4 photographs of data.source.train are in data.source.test, too")


def test_a_test_is_cut_from_the_only_files_there_are(folder: Path) -> None:
    every = {*scenes("a", 9), *scenes("b", 8)}

    def photographs(**changes: object) -> dict[str, set[str | None]]:
        made = source(folder, test=None, **changes)
        found = {s: {r.entity for r in made.captions(s)} for s in SPLITS}  # type: ignore[arg-type]
        assert {r.entity for r in made.requests("test")} <= found["test"]
        return found

    found = photographs()
    assert len(found["test"]) == 15 and len(found["calibration"]) == DEVELOPMENT
    assert set.union(*found.values()) == every
    assert sum(map(len, found.values())) == len(every)
    assert photographs() == found
    assert photographs(seed=1)["test"] != found["test"]
    assert len(photographs(test_share=0.5)["test"]) == 35
    dev = photographs(fold="dev")
    assert not dev["test"] & found["test"] and dev["train"] == found["train"]


def test_where_nothing_can_be_asked_captions_are_judged(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.tar", {n: [f"Photo {n}"] for n in scenes("a", 9)})
    made = source(tmp_path, train=f"{tmp_path}/s.tar", test=None)
    for split in SPLITS:
        requests = made.requests(split)  # type: ignore[arg-type]
        assert requests and {r.tags["family"] for r in requests} == {"caption"}
        assert len({r.image for r in requests}) == len(requests)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fold": "tset"}, r"data\.source\.fold='tset': expected test or dev"),
        ({"visits": 1.5}, r"data\.source\.visits=1\.5: expected an int of at least 1"),
        ({"visits": 0}, r"data\.source\.visits=0: expected an int of at least 1"),
        ({"questions": -1}, r"data\.source\.questions=-1: expected an int of at least 0"),
        ({"development": 1}, r"data\.source\.development=1: expected an int of at least 2"),
        ({"seed": -1}, r"data\.source\.seed=-1: expected an int of at least 0"),
        ({"test_share": 0}, r"data\.source\.test_share=0: expected a share in \(0, 1\)"),
        ({"attribution": "me"}, r"data\.source\.attribution='me': expected a list"),
    ],
)
def test_settings_out_of_range(folder: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source(folder, **settings)


def test_what_can_only_be_said_once_read(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"development=68: expected fewer than the 68 photographs"):
        source(folder, development=68).requests("train")
    with pytest.raises(FileNotFoundError, match=r"no shard at '/nowhere/0\.tar'"):
        source(folder, train=["/nowhere/0.tar"]).requests("train")
    with pytest.raises(ValueError, match="split 'val': expected one of"):
        source(folder).requests("val")  # type: ignore[arg-type]
    assert source(folder, attribution=["A", "B"]).attribution == ("A", "B")


def test_broken_photographs_count_against_the_share(folder: Path, tmp_path: Path) -> None:
    write_shard(tmp_path / "train.tar", scenes("a", 5) | {"x": []})
    settings = {"train": f"{tmp_path}/train.tar", "questions": 0, "visits": 1, "development": 2}
    with pytest.raises(ValueError, match=r"1 of 21 photographs are broken \(x in train\.tar"):
        source(folder, **settings).requests("train")
    some = partial(read_shards, max_broken=0.05)
    assert len(source(folder, **settings, read=some).requests("train")) == 18 * 5
