"""easy-VQA: questions about one coloured shape in a 64 x 64 picture.

Source: the package ``easy-vqa`` 1.0 by Victor Zhou (MIT): 4,000 + 1,000 pictures, 107 texts.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from data.requests import Split
from keynet.types import Request

# One row a phrasing: (pattern, family, negated, held out from training). Two phrasings of each
# intent are held out where that leaves one to learn from: a colour question has two in all, and
# "what is the red shape" has one.
PHRASINGS = (
    (r"is there a (?P<arg>.+)\?", "is", False, False),
    (r"is a (?P<arg>.+) present\?", "is", False, False),
    (r"is there a (?P<arg>.+) in the image\?", "is", False, True),
    (r"does the image contain a (?P<arg>.+)\?", "is", False, True),
    (r"is there not a (?P<arg>.+)\?", "is", True, False),
    (r"is no (?P<arg>.+) present\?", "is", True, False),
    (r"is there not a (?P<arg>.+) in the image\?", "is", True, True),
    (r"does the image not contain a (?P<arg>.+)\?", "is", True, True),
    (r"what color is the (?P<arg>.+)\?", "color", False, False),
    (r"what is the color of the (?P<arg>.+)\?", "color", False, True),
    (r"what shape does the image contain\?", "shape", False, False),
    (r"what shape is in the image\?", "shape", False, True),
    (r"what shape is present\?", "shape", False, True),
    (r"what is the (?P<arg>.+) shape\?", "shape", False, False),
)


def parse_question(text: str) -> tuple[int, str, bool, str, bool]:
    """Return (phrasing, family, negated, argument, held out) of one of the 107 questions.

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
    index, (_, family, negated, held_out), match = max(found, key=lambda f: len(f[1][0]))
    return index, family, negated, match.groupdict().get("arg", ""), held_out


class EasyVQA:
    """The easy-VQA data source.

    The package's test pictures are the test split. A seeded fifth of its training pictures is the
    calibration split (all phrasings, as in the test); the others, without the held-out phrasings,
    train.

    Args:
        seed: Cuts training from calibration pictures.
        fold: ``test``, or ``dev`` to develop on: then the test split is half of what calibrates,
            and the test pictures are not touched.
    """

    name = "easy_vqa"
    attribution = ("Pictures and questions: easy-VQA by Victor Zhou, MIT licence.",)
    disjoint_phrasings = False  # 107 texts do not suffice

    def __init__(self, *, seed: int = 0, fold: str = "test") -> None:
        if fold not in ("test", "dev"):
            raise ValueError(f"data.fold={fold!r}: expected test or dev")
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
            held = len(order) // 5
            if self.fold == "dev":
                cuts = {"calibration": order[: held // 2], "test": order[held // 2 : held]}
            else:
                cuts = {"calibration": order[:held]}
            chosen, folder = set(cuts.get(split, order[held:]).tolist()), "train"
        images = {index: Path(paths[index]).read_bytes() for index in chosen}
        requests = []
        for text, answer, picture in zip(*questions, strict=True):
            phrasing, family, negated, argument, held_out = parse_question(text)
            if picture not in chosen or (split == "train" and held_out):
                continue
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

    def captions(self) -> dict[str, list[str]]:
        """Return nothing: the pictures have no captions."""
        return {}
