from __future__ import annotations

import hashlib
import io
from collections import Counter, defaultdict
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

import data.emoji
from data.emoji import FAMILIES, QUESTIONS, TRAIN_PHRASINGS, Emoji
from data.emoji_catalog import VENDORS
from data.requests import CAPTION, CaptionedSource
from keynet.types import Request

SPLITS = ("train", "calibration", "test")
# As many requests of each question: 2 visits of 2 questions, and 2 of 4 with 2 at once.
SETTINGS = {"visits": 2, "questions": 4, "at_once": 2}
VISITS = 2


def quick(drawing: Image.Image, rng: np.random.Generator) -> bytes:
    """An encoding that costs nothing and is as different each time as the real ones."""
    return drawing.resize((1, 1)).tobytes() + rng.bytes(8)


@pytest.fixture(scope="module")
def source() -> Emoji:
    return Emoji(**SETTINGS)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def splits(source: Emoji) -> dict[str, list[Request]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.emoji, "as_sent", quick)
        return {split: source.requests(split) for split in SPLITS}


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.emoji, "as_sent", quick)


def alike(source: Emoji, **changes: object) -> Emoji:
    """Another source of these settings that shares what was read from disk."""
    settings = SETTINGS | changes
    made = Emoji(**settings)  # type: ignore[arg-type]
    made.__dict__ |= {"_concepts": source._concepts, "_drawings": source._drawings}
    return made


def with_both(requests: list[Request]) -> list[Request]:
    return [r for r in requests if r.image is not None and r.text is not None]


def test_a_split_has_pictures_with_questions_pictures_alone_and_texts_alone(
    source: Emoji, splits: dict[str, list[Request]]
) -> None:
    sizes = {"test": 400, "calibration": 400, "train": 763}
    for split, requests in splits.items():
        drawings = 2 * sizes[split]
        alone = [r for r in requests if r.text is None]
        texts = [r.text for r in requests if r.image is None]
        asked = with_both(requests)
        assert len(asked) == drawings * VISITS * (2 if split == "train" else 1)
        assert len({r.tags["picture"] for r in alone}) == drawings
        assert len(alone) == drawings
        assert len(texts) == len(set(texts))
        assert set(texts) == {r.text for r in asked}
        assert len(asked) + len(alone) + len(texts) == len(requests)


def test_each_visit_of_a_drawing_has_its_own_encoding(splits: dict[str, list[Request]]) -> None:
    encodings: dict[str, set[object]] = defaultdict(set)
    for r in splits["train"]:
        if r.image is not None:
            encodings[r.tags["picture"]].add(r.image)
    assert {len(images) for images in encodings.values()} == {VISITS}
    assert len(set.union(*encodings.values())) == len(encodings) * VISITS


@pytest.mark.parametrize("fold", ["test", "dev"])
def test_no_concept_and_no_drawing_is_in_two_splits(
    source: Emoji, quickly: None, fold: str
) -> None:
    folded = alike(source, fold=fold, visits=1, questions=1, at_once=1)
    entities = {s: {r.entity for r in folded.requests(s) if r.entity} for s in SPLITS}
    for one, other in combinations(SPLITS, 2):
        assert not entities[one] & entities[other]
    sizes = {split: len(found) for split, found in entities.items()}
    if fold == "test":
        assert sizes == {"test": 400, "calibration": 400, "train": 763}
        assert sum(sizes.values()) == 1563
    else:
        assert sizes == {"test": 250, "calibration": 250, "train": 663}


def test_the_dev_fold_never_shows_a_test_concept(
    source: Emoji, splits: dict[str, list[Request]], quickly: None
) -> None:
    tested = {r.entity for r in splits["test"] if r.entity}
    folded = alike(source, fold="dev", visits=1, questions=1, at_once=1)
    for split in SPLITS:
        assert not tested & {r.entity for r in folded.requests(split)}


def test_identical_drawings_are_one_concept(
    source: Emoji, splits: dict[str, list[Request]]
) -> None:
    shown = {r.entity for requests in splits.values() for r in requests if r.entity}
    for vendor in VENDORS:
        digests = Counter(
            hashlib.sha256(source._drawings[vendor][index].tobytes()).hexdigest()
            for index, concept in enumerate(source._concepts)
            if concept.code in shown
        )
        assert max(digests.values()) == 1
    assert len(source._concepts) - len(shown) > 30  # some were merged


def test_held_out_phrasings_are_never_trained_on(splits: dict[str, list[Request]]) -> None:
    phrasings = {
        split: {r.tags["phrasing"] for r in requests if r.text}
        for split, requests in splits.items()
    }
    texts = {split: {r.text for r in requests if r.text} for split, requests in splits.items()}
    for split in ("calibration", "test"):
        assert not phrasings["train"] & phrasings[split]
        assert not texts["train"] & texts[split]
    numbers = {int(p.rsplit("/", 1)[1]) for p in phrasings["train"]}
    assert numbers == set(range(TRAIN_PHRASINGS))
    assert {p.rsplit("/", 1)[0] for p in phrasings["test"]} == {
        f"{language}/{family}" for language in QUESTIONS for family in FAMILIES
    }


def test_a_drawing_is_asked_the_same_questions_again(source: Emoji, quickly: None) -> None:
    asked: dict[str, Counter[str | None]] = defaultdict(Counter)
    phrasings: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    requests = with_both(alike(source, visits=8).requests("test"))
    for r in requests:
        asked[r.tags["picture"]][r.intent] += 1
        phrasings[r.tags["picture"], r.intent].add(r.tags["phrasing"])
    assert {tuple(sorted(counts.values())) for counts in asked.values()} <= {(4, 4), (8,)}
    assert sum(len(counts) == 2 for counts in asked.values()) > 700  # of 800
    assert sum(len(found) > 1 for found in phrasings.values()) > 0.9 * len(phrasings)


def test_questions_at_once_are_about_one_encoding(splits: dict[str, list[Request]]) -> None:
    of_image = Counter(r.image for r in with_both(splits["train"]))
    assert set(of_image.values()) == {2}
    assert set(Counter(r.image for r in with_both(splits["test"])).values()) == {1}


def test_no_text_is_written_twice_in_the_questions() -> None:
    """Else a held-out phrasing would be trained on under another number."""
    for language, words in QUESTIONS.items():
        written = [text for family in FAMILIES for text in words[family]]
        assert len(set(written)) == len(written), language
        assert all(len(words[family]) == 8 for family in FAMILIES)
        assert all("{kind}" in t for f in ("is_kind", "is_not_kind") for t in words[f])
        assert not any("{kind}" in t for f in ("name", "kind") for t in words[f])
        phrases = [kind["phrase"] for kind in words["kinds"].values()]
        assert len(set(phrases)) == len(phrases) == 8
        answers = [kind["answer"] for kind in words["kinds"].values()]
        assert len(set(answers)) == len(answers) == 8
        assert words["yes"] != words["no"]


def test_yes_and_no_are_balanced_for_each_kind_and_language(
    splits: dict[str, list[Request]],
) -> None:
    for split, requests in splits.items():
        counts: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        for r in with_both(requests):
            if r.tags["family"] in ("is_kind", "is_not_kind"):
                language = r.tags["language"]
                yes = r.response == QUESTIONS[language]["yes"]
                assert yes or r.response == QUESTIONS[language]["no"]
                slot = r.tags["family"], language, r.tags["argument"]
                counts[slot]["yes" if yes else "no"] += 1
        # Of 96: the few questions of an evaluated split leave out rare kinds in some languages.
        assert len(counts) > (90 if split == "train" else 70)
        assert all(c["yes"] == c["no"] for c in counts.values()), split


def test_both_drawings_of_a_concept_are_asked_the_same(splits: dict[str, list[Request]]) -> None:
    for requests in splits.values():
        asked: dict[str, Counter[tuple[str | None, str | None]]] = {v: Counter() for v in VENDORS}
        for r in with_both(requests):
            asked[r.tags["vendor"]][r.entity, r.intent] += 1
        assert asked[VENDORS[0]] == asked[VENDORS[1]]


def test_the_answer_is_true(source: Emoji, splits: dict[str, list[Request]]) -> None:
    concepts = {concept.code: concept for concept in source._concepts}
    for requests in splits.values():
        for r in with_both(requests):
            concept, words = concepts[r.entity or ""], QUESTIONS[r.tags["language"]]
            family, argument = r.tags["family"], r.tags["argument"]
            expected = {
                "name": concept.names[r.tags["language"]],
                "kind": words["kinds"][concept.category]["answer"],
                "is_kind": words["yes" if argument == concept.category else "no"],
                "is_not_kind": words["no" if argument == concept.category else "yes"],
            }[family]
            assert r.response == expected, r.text
            number = int(r.tags["phrasing"].rsplit("/", 1)[1])
            phrase = words["kinds"][argument]["phrase"] if argument else ""
            assert r.text == words[family][number].format(kind=phrase)


def test_negation_flips_the_answer(splits: dict[str, list[Request]]) -> None:
    answers: dict[tuple[str, ...], dict[str, str | None]] = defaultdict(dict)
    for r in with_both(splits["train"]):
        if r.tags["family"] in ("is_kind", "is_not_kind"):
            assert r.tags["negated"] == str(int(r.tags["family"] == "is_not_kind"))
            key = r.entity or "", r.tags["language"], r.tags["argument"]
            answers[key][r.tags["negated"]] = r.response
    both = [found for found in answers.values() if len(found) == 2]
    assert len(both) > 20
    assert all(found["0"] != found["1"] for found in both)


def test_every_group_has_one_response_and_one_intent(splits: dict[str, list[Request]]) -> None:
    for requests in splits.values():
        groups: dict[str | None, set[tuple[str | None, str | None]]] = defaultdict(set)
        for r in requests:
            assert None not in (r.group, r.intent, r.response)
            groups[r.group].add((r.intent, r.response))
        assert all(len(found) == 1 for found in groups.values())


def test_languages_have_their_own_groups(splits: dict[str, list[Request]]) -> None:
    groups: dict[str | None, set[str]] = defaultdict(set)
    for r in with_both(splits["train"]):
        groups[r.group].add(r.tags["language"])
    assert all(len(languages) == 1 for languages in groups.values())


def test_texts_alone_are_not_equivalent_to_any_picture(splits: dict[str, list[Request]]) -> None:
    alone = [r for r in splits["test"] if r.image is None]
    assert {r.response for r in alone} == {"no picture"}
    assert not {r.group for r in alone} & {r.group for r in splits["test"] if r.image is not None}
    assert all(r.entity is None and "picture" not in r.tags for r in alone)


def test_both_vendors_draw_each_concept(splits: dict[str, list[Request]]) -> None:
    for requests in splits.values():
        vendors: dict[str | None, set[str]] = defaultdict(set)
        for r in requests:
            if r.image is not None:
                vendors[r.entity].add(r.tags["vendor"])
                assert r.tags["picture"] == f"{r.tags['vendor']}/{r.entity}"
        assert all(found == set(VENDORS) for found in vendors.values())


def test_a_vendor_can_be_held_out_of_training(source: Emoji, quickly: None) -> None:
    held = alike(source, hold_out_vendor="openmoji", visits=1, questions=1, at_once=1)
    assert {r.tags.get("vendor") for r in held.requests("train")} == {"twemoji", None}
    assert {r.tags.get("vendor") for r in held.requests("test")} == {*VENDORS, None}


def test_what_every_source_promises(splits: dict[str, list[Request]]) -> None:
    for r in splits["test"]:
        assert "family" in r.tags
        if r.image is not None:
            assert r.entity
            assert "picture" in r.tags
        if r.text is not None:
            assert {"phrasing", "argument", "negated"} <= set(r.tags)


@pytest.mark.parametrize("split", SPLITS)
def test_captions_are_the_english_names_of_the_pictures_that_are_asked_about(
    source: Emoji, splits: dict[str, list[Request]], split: str
) -> None:
    captions = source.captions(split)  # type: ignore[arg-type]
    pictures = {r.image: r for r in splits[split] if r.image is not None}
    assert [r.image for r in captions if r.image not in pictures] == []
    if split == "train":
        assert [r.image for r in captions] == list(pictures)
    else:
        drawings = [r.tags["picture"] for r in captions]
        assert sorted(drawings) == sorted({r.tags["picture"] for r in pictures.values()})
    names = {concept.code: concept.names["en"] for concept in source._concepts}
    for r in captions:
        assert r.text == r.response == names[str(r.entity)]
        assert r.group == r.intent == f"{CAPTION}|en|{r.entity}"
        assert r.entity == pictures[r.image].entity
        assert r.tags["picture"] == pictures[r.image].tags["picture"]
        assert (r.tags["family"], r.tags["language"]) == (CAPTION, "en")
    assert isinstance(source, CaptionedSource)


def test_the_same_seed_gives_the_same_bytes(source: Emoji, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.emoji, "SPLIT_SIZES", {"test": 30, "calibration": 30})
    first = alike(source).requests("test")
    assert alike(source).requests("test") == first
    other = alike(source, seed=1).requests("test")
    assert {r.entity for r in other} != {r.entity for r in first}
    calibration = alike(source).requests("calibration")
    images = [r.image for r in first + calibration if r.image is not None]
    assert len(set(images)) == len(images) == 2 * 2 * 30 * 3
    for image in images[::20]:
        assert isinstance(image, bytes)
        assert max(Image.open(io.BytesIO(image)).size) <= 192


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fold": "tset"}, r"data\.source\.fold='tset': expected test or dev"),
        ({"hold_out_vendor": "apple"}, r"data\.source\.hold_out_vendor='apple': expected one of"),
        ({"visits": 0}, r"data\.source\.visits=0"),
        ({"questions": 0}, r"data\.source\.questions=0"),
        ({"at_once": 0}, r"data\.source\.at_once=0"),
    ],
)
def test_settings_out_of_range(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Emoji(**settings)  # type: ignore[arg-type]
