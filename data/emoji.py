"""Emoji: two vendors' drawings of 1,563 concepts, as clients send them, with questions.

A request is one drawing in one encoding (``data.perturb.as_sent``) with one question in one of six
languages. The response is the true answer: the name, the kind, or yes or no.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from data.emoji_catalog import VENDORS, Concept, merge_identical, read_catalog, render
from data.perturb import as_sent
from data.requests import Split
from keynet.types import Request

QUESTIONS: dict[str, dict] = json.loads(
    Path(__file__).with_name("emoji_questions.json").read_text(encoding="utf-8")
)
FAMILIES = ("name", "kind", "is_kind", "is_not_kind")
TRAIN_PHRASINGS = 5  # of the 8 of each family and language; the others are never trained on
RENDER_SIZE = 160
SPLIT_SIZES = {"test": 400, "calibration": 400}


class Emoji:
    """The emoji data source.

    Concepts are split, so that calibration and test show concepts and phrasings that were not
    trained on. A split has ``visits`` requests with image and text for each drawing, each in its
    own encoding and phrasing, one with the image alone, and each of its texts once alone.

    Args:
        seed: Splits, encodings and questions follow from it alone.
        visits: Encodings of each drawing.
        questions: Questions about each encoding, in training; one elsewhere.
        fold: ``test``, or ``dev`` to develop on: then calibration and test are cut from what is
            not the test split, which stays untouched.
        hold_out_vendor: A vendor whose drawings are not trained on.
    """

    name = "emoji"
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
        questions: int = 4,
        fold: str = "test",
        hold_out_vendor: str | None = None,
    ) -> None:
        if fold not in ("test", "dev"):
            raise ValueError(f"data.fold={fold!r}: expected test or dev")
        if hold_out_vendor is not None and hold_out_vendor not in VENDORS:
            raise ValueError(f"data.hold_out_vendor={hold_out_vendor!r}: expected one of {VENDORS}")
        if visits < 1 or questions < 1:
            raise ValueError(f"data.visits={visits}, data.questions={questions}: expected >= 1")
        self.seed, self.visits, self.questions = seed, visits, questions
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
        training = split == "train"
        seeds = np.random.SeedSequence([self.seed, sorted(SPLIT_SIZES | {"train": 0}).index(split)])
        vendors = [v for v in VENDORS if not (training and v == self.hold_out_vendor)]
        pictures = [
            (index, vendor, visit)
            for index in self._splits[split]
            for vendor in vendors
            for visit in range(self.visits + 1)
        ]
        encoding_seeds, question_seed = seeds.spawn(2)
        sent = [
            as_sent(Image.fromarray(self._drawings[vendor][index]), np.random.default_rng(child))
            for (index, vendor, _), child in tqdm(
                zip(pictures, encoding_seeds.spawn(len(pictures)), strict=True),
                desc=f"encoding {split} pictures",
                total=len(pictures),
                unit="picture",
                disable=None,
            )
        ]
        asked = [i for i, (_, _, visit) in enumerate(pictures) if visit < self.visits]
        slots = np.repeat(asked, self.questions if training else 1)
        rng = np.random.default_rng(question_seed)
        requests, texts = [], {}
        for slot, (family, language, kind, answer) in zip(
            slots, self._questions([pictures[s][0] for s in slots], rng), strict=True
        ):
            index, vendor, _ = pictures[slot]
            request = self._request(index, vendor, sent[slot], family, language, kind, answer, rng, training)
            requests.append(request)
            texts[request.text] = request
        for i, (index, vendor, visit) in enumerate(pictures):
            if visit == self.visits:
                requests.append(self._image_alone(index, vendor, sent[i]))
        requests += [self._text_alone(request) for request in texts.values()]
        return requests

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
        return list(zip(families.tolist(), spoken.tolist(), asked.tolist(), shown.tolist(), strict=True))

    def _request(
        self,
        index: int,
        vendor: str,
        image: bytes,
        family: str,
        language: str,
        kind: str,
        shown: bool,
        rng: np.random.Generator,
        training: bool,
    ) -> Request:
        concept, words = self._concepts[index], QUESTIONS[language]
        phrasings = words[family]
        trained = range(TRAIN_PHRASINGS)
        held_out = range(TRAIN_PHRASINGS, len(phrasings))
        number = int(rng.choice(trained if training else held_out))
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
            text=phrasings[number].format(kind=words["kinds"][kind]["phrase"]),
            response=response,
            group=f"{intent}|{language}|{response}",
            entity=concept.code,
            intent=f"{intent}|{language}",
            tags={
                "picture": f"{vendor}/{concept.code}",
                "vendor": vendor,
                "family": family,
                "phrasing": f"{language}/{family}/{number}",
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

    def captions(self) -> dict[str, list[str]]:
        """Return the names of each training concept in all languages."""
        concepts = [self._concepts[index] for index in self._splits["train"]]
        return {c.code: [c.names[language] for language in QUESTIONS] for c in concepts}
