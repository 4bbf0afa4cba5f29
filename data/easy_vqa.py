"""easy-VQA: questions about one coloured shape in a 64 x 64 picture.

Source: the package ``easy-vqa`` 1.0 by Victor Zhou (MIT): 4,000 + 1,000 pictures, 107 texts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from data.requests import CAPTION, Split
from keynet.types import Request

PHRASINGS = (  # pattern, family, negated
    (r"is there a (?P<arg>.+)\?", "is", False),
    (r"is a (?P<arg>.+) present\?", "is", False),
    (r"is there a (?P<arg>.+) in the image\?", "is", False),
    (r"does the image contain a (?P<arg>.+)\?", "is", False),
    (r"is there not a (?P<arg>.+)\?", "is", True),
    (r"is no (?P<arg>.+) present\?", "is", True),
    (r"is there not a (?P<arg>.+) in the image\?", "is", True),
    (r"does the image not contain a (?P<arg>.+)\?", "is", True),
    # One shape a picture: "what color is the circle" asks for what "... the shape" asks for.
    (r"what color is the .+\?", "color", False),
    (r"what is the color of the .+\?", "color", False),
    (r"what shape does the image contain\?", "shape", False),
    (r"what shape is in the image\?", "shape", False),
    (r"what shape is present\?", "shape", False),
    (r"what is the \w+ shape\?", "shape", False),
)
HELD_OUT = 2  # phrasings of each intent


def parse_question(text: str) -> tuple[int, str, bool, str]:
    """Return (phrasing, family, negated, argument) of one of the 107 questions.

    Raises:
        ValueError: For a text that is none of them.
    """
    found = [
        (index, row, match)
        for index, row in enumerate(PHRASINGS)
        if (match := re.fullmatch(row[0], text))
    ]
    if not found:
        raise ValueError(f"not an easy-VQA question: {text!r}")
    # "is there a X in the image" also matches "is there a X": the longer pattern is the phrasing.
    index, (_, family, negated), match = max(found, key=lambda f: len(f[1][0]))
    return index, family, negated, match.groupdict().get("arg", "")


def held_out_texts(texts: Iterable[str], seed: int) -> set[str]:
    """Return the texts not to train on: two phrasings of each intent.

    Which two differs from argument to argument, so that every word is learned with some of them.
    """
    by_intent: dict[tuple[str, bool, str], list[str]] = defaultdict(list)
    for text in sorted(set(texts)):
        by_intent[parse_question(text)[1:]].append(text)
    rng = np.random.default_rng(seed)
    return {
        str(text) for phrased in by_intent.values() for text in rng.permutation(phrased)[:HELD_OUT]
    }


class EasyVQA:
    """The easy-VQA data source.

    The package's test pictures are the test split. A seeded quarter of its training pictures is the
    calibration split (all phrasings, as in the test); the others, without the held-out phrasings,
    train.

    Args:
        seed: Cuts training from calibration pictures.
        fold: ``test``, or ``dev`` to develop on: then the test split is half of what calibrates,
            and the test pictures are not touched.
    """

    attribution = ("Pictures and questions: easy-VQA by Victor Zhou, MIT licence.",)
    disjoint_phrasings = False  # 107 texts do not suffice

    def __init__(self, *, seed: int = 0, fold: str = "test") -> None:
        if fold not in ("test", "dev"):
            raise ValueError(f"data.source.fold={fold!r}: expected test or dev")
        self.name = "easy_vqa" if fold == "test" else "easy_vqa_dev"
        self.seed, self.fold = seed, fold

    def requests(self, split: Split) -> list[Request]:
        """Return the requests of a split, in the package's order."""
        try:
            import easy_vqa
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "package easy-vqa is missing; install it with: pip install 'keynet-cache[demo]'"
            ) from error
        if split == "test" and self.fold == "test":
            questions, paths = easy_vqa.get_test_questions(), easy_vqa.get_test_image_paths()
            chosen, folder = set(paths), "test"
        else:
            questions, paths = easy_vqa.get_train_questions(), easy_vqa.get_train_image_paths()
            order = np.random.default_rng(self.seed).permutation(sorted(paths))
            held = len(order) // 4
            if self.fold == "dev":
                cuts = {"calibration": order[: held // 2], "test": order[held // 2 : held]}
            else:
                cuts = {"calibration": order[:held]}
            chosen, folder = set(cuts.get(split, order[held:]).tolist()), "train"
        images = {index: Path(paths[index]).read_bytes() for index in chosen}
        left_out = held_out_texts(questions[0], self.seed) if split == "train" else set()
        requests = []
        for text, answer, picture in zip(*questions, strict=True):
            if picture not in chosen or text in left_out:
                continue
            phrasing, family, negated, argument = parse_question(text)
            intent = f"{'not ' if negated else ''}{family}({argument})"
            requests.append(
                Request(
                    image=images[picture],
                    text=text,
                    response=answer,
                    group=f"{intent}|en|{answer}",
                    entity=f"{folder}/{picture}",
                    intent=intent,
                    tags={
                        "picture": f"{folder}/{picture}",
                        "family": family,
                        "phrasing": str(phrasing),
                        "negated": str(int(negated)),
                        "argument": argument,
                    },
                )
            )
        return requests

    def captions(self, split: Split) -> list[Request]:
        """Return ``a red triangle`` for each picture that is asked for its colour and shape.

        All red triangles are one entity here: their captions cannot tell them apart.
        """
        known: dict[str, dict[str, Request]] = defaultdict(dict)
        for request in self.requests(split):
            known[str(request.entity)][request.tags["family"]] = request
        found = []
        for entity, by_family in known.items():
            if not {"color", "shape"} <= by_family.keys():
                continue
            colour, shape = by_family["color"].response, by_family["shape"].response
            text = f"a {colour} {shape}"
            found.append(
                Request(
                    image=by_family["color"].image,
                    text=text,
                    response=text,
                    group=f"{CAPTION}|{text}",
                    entity=text,
                    intent=f"{CAPTION}|{text}",
                    tags={"picture": entity, "family": CAPTION},
                )
            )
        return found
