"""Photographs with captions: retrieval by caption, and questions whether a thing is shown.

They come from shards (``data.webdataset``), caption files (``data.coco``) or Parquet
(``data.parquet``). A question is "is there a NOUN?" for a noun of
``nouns.json``; its answer is what five captions agree on, so that photographs with fewer than five
captions have caption requests only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from data.perturb import photo_as_sent
from data.photograph_splits import (
    check_for_test,
    cut_test,
    joined_copies,
    says_splits,
    without_tested,
)
from data.photographs import Photograph, Read
from data.requests import CAPTION, Split
from keynet.pictures import open_image
from keynet.progress import progress_bar
from keynet.types import Request

PHRASINGS = (  # {thing}: the noun with its article
    "is there {thing}?",
    "do you see {thing} in this picture?",
    "any {noun} here?",
    "Does the photo show {thing}?",
    "tell me whether {thing} is visible",
    "Can you spot {thing}?",
    "is {thing} in the image",
    "Look at the photo: does {thing} appear in it?",
)
TRAIN_PHRASINGS = 5  # of the 8; the others are never trained on
CAPTIONS, NAMED = 5, 3  # of at least 5 captions, 3 must name a thing that is shown
EVALUATED, EVALUATED_VISITS = 4, 2  # nouns of each photograph, each asked in two encodings
SPLITS = ("train", "calibration", "test")
WORD = re.compile(r"[^\W\d_]+")


def read_nouns() -> dict[str, dict[str, str | list[str]]]:
    """Return ``nouns.json`` by noun, its named lists (``@NAME``) written out.

    ``article`` is "" for a mass. A caption names the thing by a word of ``forms``. One of
    ``unsafe`` leaves open whether it is shown, so that there is no "no". One of ``clash`` means
    that the forms may stand for something else: the noun is not asked. Entries are a word, two
    words, or the beginning of a word (``ski*``).
    """
    path = Path(__file__).with_name("nouns.json")
    written = json.loads(path.read_text(encoding="utf-8"))
    nouns: dict[str, dict[str, str | list[str]]] = written["nouns"]
    for noun in nouns.values():
        for role in ("forms", "unsafe", "clash"):
            noun[role] = [
                term
                for entry in noun[role]
                for term in (written["lists"][entry[1:]] if entry.startswith("@") else [entry])
            ]
    return nouns


NOUNS = read_nouns()
ENTRIES: dict[str, set[tuple[str, str]]] = defaultdict(set)  # term: (noun, role)
for _noun, _roles in NOUNS.items():
    for _role in ("forms", "unsafe", "clash"):
        for _term in _roles[_role]:
            ENTRIES[_term].add((_noun, _role))


def label_nouns(captions: Sequence[str]) -> dict[str, bool]:
    """Return the nouns that may be asked about a photograph, and whether the thing is shown.

    Yes where at least 3 captions name it; no where none names it or anything that leaves it open.
    Other nouns are absent, and all of them with fewer than 5 captions.
    """
    if len(captions) < CAPTIONS:
        return {}
    named: Counter[str] = Counter()
    met: dict[str, set[str]] = {"forms": set(), "unsafe": set(), "clash": set()}
    for caption in captions:
        found = {entry for term in _terms(caption) for entry in ENTRIES.get(term, ())}
        named.update(noun for noun, role in found if role == "forms")
        for noun, role in found:
            met[role].add(noun)
    yes = {noun for noun, count in named.items() if count >= NAMED}
    no = NOUNS.keys() - met["forms"] - met["unsafe"]
    return {noun: noun in yes for noun in NOUNS if noun in (yes | no) - met["clash"]}


def _terms(caption: str) -> set[str]:
    words = WORD.findall(caption.lower())
    beginnings = (f"{word[:end]}*" for word in words for end in range(2, len(word) + 1))
    return {*words, *beginnings, *(f"{one} {other}" for one, other in pairwise(words))}


def choose_nouns(
    labels: Sequence[dict[str, bool]], questions: int, rng: np.random.Generator
) -> list[list[tuple[str, bool]]]:
    """Return up to ``questions`` nouns for each photograph, as many yes as no for every noun.

    Args:
        labels: Of each photograph (``label_nouns``).
        questions: Half of them yes, at most.
        rng: All randomness.
    """
    chosen: list[dict[str, bool]] = [{} for _ in labels]
    by_answer: dict[bool, dict[str, list[int]]] = {True: {}, False: {}}
    for answer, photographs in by_answer.items():
        for noun in NOUNS:
            photographs[noun] = [i for i, known in enumerate(labels) if known.get(noun) is answer]
    most = {n: min(len(by_answer[True][n]), len(by_answer[False][n])) for n in NOUNS}
    # An odd number is halved by lot. The rarest nouns first, else the frequent ones fill the slots.
    free_for_yes = (questions + rng.integers(0, 2, len(labels))) // 2
    asked: dict[str, list[int]] = {}
    for noun in sorted(NOUNS, key=lambda n: (most[n], n)):
        free = [i for i in by_answer[True][noun] if len(chosen[i]) < free_for_yes[i]]
        asked[noun] = rng.permutation(np.array(free, dtype=int))[: most[noun]].tolist()
        for photograph in asked[noun]:
            chosen[photograph][noun] = True
    # Nouns with the fewest photographs to spare first; of these the ones with most free slots.
    spare = {noun: len(by_answer[False][noun]) - len(asked[noun]) for noun in NOUNS}
    for noun in sorted(NOUNS, key=lambda n: (spare[n], n)):
        free = [i for i in by_answer[False][noun] if len(chosen[i]) < questions]
        shuffled = rng.permutation(np.array(free, dtype=int)).tolist()
        shuffled.sort(key=lambda i: len(chosen[i]))
        for photograph in shuffled[: len(asked[noun])]:
            chosen[photograph][noun] = False
        for photograph in asked[noun][len(shuffled) :]:
            del chosen[photograph][noun]
    return [list(nouns.items()) for nouns in chosen]


class Captioned:
    """A data source of photographs with captions.

    Held out: the photographs of ``test``, or without them a share of the others; of those of
    ``train`` the ``development`` whose names have the smallest SHA-256, on which is calibrated; of
    the 8 phrasings of a question, 3. No picture is in two of them, by its bytes: copies within
    ``train`` or ``test`` are one photograph, and one that is in both is not trained on.

    A training photograph is visited ``visits`` times: first as stored, then each time cropped,
    mirrored, resized and encoded anew. Its captions are spread over the visits; each visit asks
    for the same nouns in another phrasing. In calibration and test there are two visits, nouns
    only; where no photograph of the split can be asked about one, its captions. An encoding
    follows from seed, name and visit, whatever else is in the data.

    Args:
        train: Paths, globs or numbered ranges (``data.file_patterns``) of what is trained on.
        test: Of what is tested on; None takes what the files of ``train`` say is for test, or else
            cuts it from them.
        read: Returns the photographs of such paths.
        test_share: Of the photographs, where the test is cut.
        name: What reports call the data.
        seed: Encodings, nouns and phrasings follow from it, and a test that is cut.
        development: Training photographs that are not trained on.
        visits: Encodings of each training photograph.
        questions: Nouns asked about each, at most.
        fold: ``test``, or ``dev`` to develop on: then calibration and test are the two halves of
            the development photographs. Neither trains on those of ``test``.
        attribution: Whom to credit.

    Raises:
        ValueError: For a setting out of range.
    """

    disjoint_phrasings = True

    def __init__(
        self,
        *,
        train: Sequence[str] | str,
        test: Sequence[str] | str | None,
        read: Read,
        test_share: float = 0.2,
        name: str = "captioned",
        seed: int = 0,
        development: int = 500,
        visits: int = 2,
        questions: int = 4,
        fold: str = "test",
        attribution: Sequence[str] = (),
    ) -> None:
        if fold not in ("test", "dev"):
            raise ValueError(f"data.source.fold={fold!r}: expected test or dev")
        least = {"seed": (seed, 0), "development": (development, 2), "visits": (visits, 1)}
        for key, (value, minimum) in (least | {"questions": (questions, 0)}).items():
            if type(value) is not int or value < minimum:
                raise ValueError(
                    f"data.source.{key}={value!r}: expected an int of at least {minimum}"
                )
        if not 0 < test_share < 1:
            raise ValueError(f"data.source.test_share={test_share}: expected a share in (0, 1)")
        if isinstance(attribution, str):
            raise ValueError(f"data.source.attribution={attribution!r}: expected a list of texts")
        self.name = name if fold == "test" else f"{name}_dev"
        self.attribution = tuple(attribution)
        self.train, self.test, self.read, self.test_share = train, test, read, test_share
        self.seed, self.development, self.fold = seed, development, fold
        self.visits, self.questions = visits, questions

    def requests(self, split: Split) -> list[Request]:
        """Return the requests of a split, photograph by photograph, visit by visit."""
        if split not in SPLITS:
            raise ValueError(f"split {split!r}: expected one of {SPLITS}")
        return list(self._requests(split))

    def captions(self, split: Split | Literal["development"]) -> list[Request]:
        """Return one request for each caption, its photograph as stored.

        Args:
            split: For ``train``, the caption requests of the training instead, in their encodings.
                Besides the splits, ``development``: in the fold ``dev``, calibration and test.
        """
        if split not in (*SPLITS, "development"):
            raise ValueError(f"split {split!r}: expected development or one of {SPLITS}")
        if split == "train":
            return [r for r in self._requests("train") if r.tags["family"] == CAPTION]
        photographs = self._development if split == "development" else self._photographs(split)
        return [
            _caption_request(photograph, photograph.image, number)
            for photograph in photographs
            for number in range(len(photograph.captions))
        ]

    @cache  # noqa: B019 - a source lives as long as the program, and encoding takes a while
    def _requests(self, split: Split) -> tuple[Request, ...]:
        training = split == "train"
        visits = self.visits if training else EVALUATED_VISITS
        questions = self.questions if training else EVALUATED
        photographs = self._photographs(split)
        asked = choose_nouns(
            [label_nouns(photograph.captions) for photograph in photographs],
            questions,
            np.random.default_rng([self.seed, SPLITS.index(split)]),
        )
        captioned = training or not any(asked)
        requests: list[Request] = []
        bar = progress_bar(photographs, desc=f"encoding {split} photographs", unit="photo")
        for photograph, nouns in zip(bar, asked, strict=True):
            rng = self._rng(photograph.name, 0)
            captions = rng.permutation(len(photograph.captions)).tolist()
            phrasings = [_phrasings(training, rng) for _ in nouns]
            for visit in range(visits):
                image = self._image(photograph, visit)
                if captioned:  # with more visits than captions, these come again
                    for slot in range(visit, max(visits, len(captions)), visits):
                        number = captions[slot % len(captions)]
                        requests.append(_caption_request(photograph, image, number))
                for (noun, shown), order in zip(nouns, phrasings, strict=True):
                    phrasing = order[visit % len(order)]
                    requests.append(_noun_request(photograph, image, noun, shown, phrasing))
        return tuple(requests)

    def _photographs(self, split: Split) -> list[Photograph]:
        if split == "train":
            held_out = {photograph.name for photograph in self._development}
            return [p for p in self._training if p.name not in held_out]
        if self.fold == "test":
            return self._development if split == "calibration" else self._test
        half = len(self._development) // 2
        return self._development[:half] if split == "calibration" else self._development[half:]

    @cached_property
    def _cut(self) -> tuple[list[Photograph], list[Photograph]]:
        """What is trained and calibrated on, and what is tested on."""
        found = joined_copies(self.read(self.train))
        if self.test is None:
            training, test = cut_test(found, self.test_share, self.seed)
        elif says_splits(found):
            raise ValueError(
                "data.source.train says itself which photographs are for test; give "
                "data.source.test=null"
            )
        else:
            test = joined_copies(self.read(self.test))
            check_for_test(test)
            training = without_tested(found, test)
        if len(training) <= self.development:
            raise ValueError(
                f"data.source.development={self.development}: expected fewer than the "
                f"{len(training):,} photographs of data.source.train (of {len(found):,}) that are "
                "not tested on"
            )
        return training, test

    @property
    def _training(self) -> list[Photograph]:
        return self._cut[0]

    @property
    def _test(self) -> list[Photograph]:
        return self._cut[1]

    @cached_property
    def _development(self) -> list[Photograph]:
        """By the hash of the name, so that a half of them is any half."""
        return sorted(self._training, key=lambda p: _digest(p.name))[: self.development]

    def _rng(self, name: str, visit: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, _digest(name), visit])

    def _image(self, photograph: Photograph, visit: int) -> bytes | Path:
        if visit == 0:
            return photograph.image
        return photo_as_sent(open_image(photograph.image), self._rng(photograph.name, visit))


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")


def _phrasings(training: bool, rng: np.random.Generator) -> list[int]:
    first, end = (0, TRAIN_PHRASINGS) if training else (TRAIN_PHRASINGS, len(PHRASINGS))
    order: list[int] = rng.permutation(np.arange(first, end)).tolist()
    return order


def _caption_request(photograph: Photograph, image: bytes | Path, number: int) -> Request:
    """Captions of a photograph are equivalent; the response stands for the photograph."""
    return Request(
        image=image,
        text=photograph.captions[number],
        response=photograph.name,
        group=f"{CAPTION}|{photograph.name}",
        entity=photograph.name,
        intent=f"{CAPTION}|{photograph.name}",
        tags={
            "picture": photograph.name,
            "family": CAPTION,
            "phrasing": f"{CAPTION}/{number}",
            "negated": "0",
            "argument": photograph.name,
        },
    )


def _noun_request(
    photograph: Photograph, image: bytes | Path, noun: str, shown: bool, phrasing: int
) -> Request:
    response = "yes" if shown else "no"
    intent = f"is_there({noun})|en"
    thing = f"{NOUNS[noun]['article']} {noun}".strip()
    return Request(
        image=image,
        text=PHRASINGS[phrasing].format(thing=thing, noun=noun),
        response=response,
        group=f"{intent}|{response}",
        entity=photograph.name,
        intent=intent,
        tags={
            "picture": photograph.name,
            "family": "is_there",
            "phrasing": f"en/is_there/{phrasing}",
            "negated": "0",
            "argument": noun,
            "language": "en",
        },
    )
