"""Emoji: two vendors' drawings of 1,563 concepts, as clients send them, with questions.

A request is one drawing in one encoding (``data.perturb.as_sent``) with one question in one of six
languages. The response is the true answer: the name, the kind, or yes or no.
"""

from __future__ import annotations

import json
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from data.emoji_catalog import VENDORS, Concept, merge_identical, read_catalog, render
from data.perturb import as_sent
from data.requests import CAPTION, Split
from keynet.progress import progress_bar
from keynet.types import Request

QUESTIONS: dict[str, dict] = json.loads(
    Path(__file__).with_name("emoji_questions.json").read_text(encoding="utf-8")
)
FAMILIES = ("name", "kind", "is_kind", "is_not_kind")
NUM_PHRASINGS = 8
TRAIN_PHRASINGS = 5  # of the 8 of each family and language; the others are never trained on
RENDER_SIZE = 160
EVALUATED = 2  # questions about each drawing in calibration and test, asked again and again
ALONE_EVERY = 4  # visits, in training: of each so many pictures one is also sent without a question
SPLITS = ("train", "calibration", "test")
SPLIT_SIZES = {"test": 400, "calibration": 400}


class Emoji:
    """The emoji data source.

    Concepts are split, so that calibration and test show concepts and phrasings that were not
    trained on. There each drawing is visited ``visits`` times with one of two questions about it,
    each visit in an encoding of its own, then once without a question; each text comes once alone.

    Args:
        seed: Splits, encodings and questions follow from it alone.
        visits: Encodings of each drawing.
        questions: Questions about each drawing, in training; yes and no are balanced when
            ``visits * at_once`` is a multiple of it.
        at_once: Of them, how many about one encoding, in training.
        fold: ``test``, or ``dev`` to develop on: then calibration and test are cut from what is
            not the test split, which stays untouched.
        hold_out_vendor: A vendor whose drawings are not trained on.
    """

    attribution = (
        "Twemoji graphics by Twitter, Inc and other contributors, CC-BY 4.0.",
        "OpenMoji: the open-source emoji and icon project, CC BY-SA 4.0.",
    )
    disjoint_phrasings = True

    def __init__(
        self,
        *,
        seed: int = 0,
        visits: int = 8,
        questions: int = 8,
        at_once: int = 4,
        fold: str = "test",
        hold_out_vendor: str | None = None,
    ) -> None:
        if fold not in ("test", "dev"):
            raise ValueError(f"data.source.fold={fold!r}: expected test or dev")
        self.name = "emoji" if fold == "test" else "emoji_dev"
        if hold_out_vendor is not None and hold_out_vendor not in VENDORS:
            raise ValueError(
                f"data.source.hold_out_vendor={hold_out_vendor!r}: expected one of {VENDORS}"
            )
        for name, value in (("visits", visits), ("questions", questions), ("at_once", at_once)):
            if value < 1:
                raise ValueError(f"data.source.{name}={value}: expected at least 1")
        self.seed, self.visits, self.questions, self.at_once = seed, visits, questions, at_once
        self.fold, self.hold_out_vendor = fold, hold_out_vendor

    @cached_property
    def _concepts(self) -> list[Concept]:
        return read_catalog(tuple(QUESTIONS))

    @cached_property
    def _drawings(self) -> dict[str, np.ndarray]:
        return render(self._concepts, RENDER_SIZE)

    @cached_property
    def _splits(self) -> dict[str, list[int]]:
        """Indices of the concepts of each split; drawings that are identical stay together."""
        distinct = np.unique(merge_identical(self._drawings))
        order = np.random.default_rng(self.seed).permutation(distinct)
        test, rest = order[: SPLIT_SIZES["test"]], order[SPLIT_SIZES["test"] :]
        sizes = dict(SPLIT_SIZES)
        if self.fold == "dev":
            sizes = {"test": 250, "calibration": 250}
            test, rest = rest[: sizes["test"]], rest[sizes["test"] :]
        cut = sizes["calibration"]
        splits = {"test": test, "calibration": rest[:cut], "train": rest[cut:]}
        return {name: sorted(indices.tolist()) for name, indices in splits.items()}

    def requests(self, split: Split) -> list[Request]:
        """Return the requests of a split, drawing by drawing, then the texts alone."""
        return list(self._requests(split))

    def captions(self, split: Split) -> list[Request]:
        """Return pictures with the English name of their concept: all of them in training, else one
        of each drawing."""
        pictures = {r.image: r for r in self._requests(split) if isinstance(r.image, bytes)}
        if split != "train":
            one = {r.tags["picture"]: image for image, r in reversed(pictures.items())}
            pictures = {image: pictures[image] for image in one.values()}
        names = {concept.code: concept.names["en"] for concept in self._concepts}
        return [
            Request(
                image=image,
                text=names[str(request.entity)],
                response=names[str(request.entity)],
                group=f"{CAPTION}|en|{request.entity}",
                entity=request.entity,
                intent=f"{CAPTION}|en|{request.entity}",
                tags={
                    "picture": request.tags["picture"],
                    "vendor": request.tags["vendor"],
                    "family": CAPTION,
                    "language": "en",
                },
            )
            for image, request in pictures.items()
        ]

    @cache  # noqa: B019 - a source lives as long as the program, and encoding takes half a minute
    def _requests(self, split: Split) -> tuple[Request, ...]:
        training = split == "train"
        questions, at_once = (self.questions, self.at_once) if training else (EVALUATED, 1)
        phrasings = range(TRAIN_PHRASINGS) if training else range(TRAIN_PHRASINGS, NUM_PHRASINGS)
        seeds = np.random.SeedSequence([self.seed, SPLITS.index(split)])
        rng = np.random.default_rng(seeds.spawn(1)[0])
        drawings = [
            (index, vendor)
            for index in self._splits[split]
            for vendor in VENDORS
            if not (training and vendor == self.hold_out_vendor)
        ]
        concepts = self._splits[split]
        asked = self._questions([index for index in concepts for _ in range(questions)], rng)
        place = {index: number * questions for number, index in enumerate(concepts)}
        requests: list[Request] = []
        texts: dict[str, Request] = {}
        for index, vendor in progress_bar(
            drawings, desc=f"encoding {split} drawings", unit="drawing"
        ):
            drawing = Image.fromarray(self._drawings[vendor][index])
            own = asked[place[index] : place[index] + questions]
            for visit in range(self.visits):
                image = as_sent(drawing, rng)
                for which in range(visit * at_once, (visit + 1) * at_once):
                    phrasing = int(rng.choice(phrasings))
                    request = self._request(index, vendor, image, *own[which % questions], phrasing)
                    requests.append(request)
                    texts[str(request.text)] = request
                if training and visit % ALONE_EVERY == 0:
                    requests.append(self._image_alone(index, vendor, image))
            if not training:
                requests.append(self._image_alone(index, vendor, as_sent(drawing, rng)))
        return (*requests, *(self._text_alone(request) for request in texts.values()))

    def _questions(
        self, concepts: list[int], rng: np.random.Generator
    ) -> list[tuple[str, str, str, bool]]:
        """Return (family, language, kind, yes) for each slot.

        Yes and no are balanced for each kind and language: the slots of a yes-or-no family are
        paired over two kinds, both of a pair are asked about the kind of the first.
        """
        languages = list(QUESTIONS)
        count = len(concepts)
        families = np.array(FAMILIES)[rng.integers(len(FAMILIES), size=count)]
        spoken = np.array(languages)[rng.integers(len(languages), size=count)]
        kinds = np.array([self._concepts[c].category for c in concepts])
        asked, shown = kinds.copy(), np.ones(count, bool)
        for family in ("is_kind", "is_not_kind"):
            for language in languages:
                slots = rng.permutation(np.flatnonzero((families == family) & (spoken == language)))
                # Sorted by kind, half a length apart: different kinds unless one has the majority.
                slots = slots[np.argsort(kinds[slots], kind="stable")]
                half = len(slots) // 2
                first, second = slots[:half], slots[half : 2 * half]
                swap = rng.random(half) < 0.5
                first, second = np.where(swap, second, first), np.where(swap, first, second)
                alike = kinds[first] == kinds[second]
                unpaired = np.concatenate([slots[2 * half :], first[alike], second[alike]])
                families[unpaired] = "kind"
                asked[second[~alike]] = kinds[first[~alike]]
                shown[second[~alike]] = False
        return list(
            zip(families.tolist(), spoken.tolist(), asked.tolist(), shown.tolist(), strict=True)
        )

    def _request(
        self,
        index: int,
        vendor: str,
        image: bytes,
        family: str,
        language: str,
        kind: str,
        shown: bool,
        phrasing: int,
    ) -> Request:
        concept, words = self._concepts[index], QUESTIONS[language]
        yes_or_no = family in ("is_kind", "is_not_kind")
        if yes_or_no:
            response = words["yes"] if shown == (family == "is_kind") else words["no"]
        elif family == "kind":
            response = words["kinds"][kind]["answer"]
        else:
            response = concept.names[language]
        argument = kind if yes_or_no else ""
        intent = f"{family}({argument})"
        return Request(
            image=image,
            text=words[family][phrasing].format(kind=words["kinds"][kind]["phrase"]),
            response=response,
            group=f"{intent}|{language}|{response}",
            entity=concept.code,
            intent=f"{intent}|{language}",
            tags={
                "picture": f"{vendor}/{concept.code}",
                "vendor": vendor,
                "family": family,
                "phrasing": f"{language}/{family}/{phrasing}",
                "negated": str(int(family == "is_not_kind")),
                "argument": argument,
                "language": language,
                "order": str(concept.order),
            },
        )

    def _image_alone(self, index: int, vendor: str, image: bytes) -> Request:
        concept = self._concepts[index]
        return Request(
            image=image,
            response=concept.names["en"],
            group=f"describe|en|{concept.code}",
            entity=concept.code,
            intent="describe",
            tags={
                "picture": f"{vendor}/{concept.code}",
                "vendor": vendor,
                "family": "describe",
                "order": str(concept.order),
            },
        )

    def _text_alone(self, request: Request) -> Request:
        return Request(
            text=request.text,
            response="no picture",
            group=f"no picture|{request.intent}",
            intent=f"no picture|{request.intent}",
            tags={k: request.tags[k] for k in ("family", "phrasing", "negated", "argument")},
        )
