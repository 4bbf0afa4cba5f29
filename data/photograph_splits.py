"""Photographs to train on and to test on, so that no picture is in both."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace

from data.features import content_digest
from data.photographs import SHOWN, Photograph

logger = logging.getLogger(__name__)

LEAST = 4  # one to train on, two to calibrate on, one to test on


def joined_copies(photographs: Sequence[Photograph]) -> list[Photograph]:
    """Return the photographs, those of the same bytes as one, with the captions of all.

    The first names it; a caption that it has already is not added. Copies are counted in a warning.
    """
    first: dict[bytes, int] = {}
    found: list[Photograph] = []
    copies: list[str] = []
    for photograph in photographs:
        number = first.setdefault(content_digest(photograph.image), len(found))
        if number == len(found):
            found.append(photograph)
            continue
        one = found[number]
        copies.append(f"{photograph.name} of {one.name}")
        more = [c for c in dict.fromkeys(photograph.captions) if c not in one.captions]
        # Of two splits the one that is not trained on.
        split = "test" if "test" in (one.split, photograph.split) else one.split
        found[number] = replace(one, captions=(*one.captions, *more), split=split)
    if copies:
        logger.warning(
            "%s photographs are exact copies (%s): each is taken once, with the captions of all",
            f"{len(copies):,}",
            _shown(copies),
        )
    return found


def cut_test(
    photographs: Sequence[Photograph], share: float, seed: int
) -> tuple[list[Photograph], list[Photograph]]:
    """Return those to train on and those to test on, each in its order.

    Where their files say a split, it is kept. Otherwise the SHA-256 of seed and name decides,
    whatever else is in the data: below ``share`` of its range it is for test, and the least one
    where none is.

    Args:
        photographs: Without copies.
        share: Of the photographs that are for test, about.
        seed: Cuts.

    Raises:
        ValueError: They are too few, or their files say splits of which none is for test.
    """
    if len(photographs) < LEAST:
        raise ValueError(
            f"data.source.train has {len(photographs)} photographs, too few for training, "
            f"calibration and test: give at least {LEAST}"
        )
    if says_splits(photographs):
        test = {p.name for p in photographs if p.split == "test"}
        if not test:
            raise ValueError(
                "data.source.train says the split of its photographs, and none is for test; name "
                "a file of others: data.source.test=FILE"
            )
    else:
        places = {p.name: _place(seed, p.name) for p in photographs}
        test = {name for name, place in places.items() if place < share}
        test = test or {min(places, key=places.__getitem__)}
    return (
        [p for p in photographs if p.name not in test],
        [p for p in photographs if p.name in test],
    )


def _place(seed: int, name: str) -> float:
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest, "big") / 2 ** (8 * len(digest))


def says_splits(photographs: Sequence[Photograph]) -> bool:
    """Whether their files say which are for test."""
    return any(photograph.split is not None for photograph in photographs)


def check_for_test(test: Sequence[Photograph]) -> None:
    """Raise ValueError where the files to test on say that some are for training."""
    trained = [p.name for p in test if p.split not in (None, "test")]
    if trained:
        raise ValueError(
            f"data.source.test says itself that {len(trained):,} photographs are not for test "
            f"({_shown(trained)}); give it as data.source.train, with data.source.test=null"
        )


def without_tested(training: Sequence[Photograph], test: Sequence[Photograph]) -> list[Photograph]:
    """Return the training photographs that are not in the test, by their bytes.

    Those left out are counted in a warning.

    Args:
        training: To train on.
        test: To test on.

    Raises:
        ValueError: Two photographs have one name.
    """
    tested = {content_digest(p.image): p.name for p in test}
    found, left_out = [], []
    for photograph in training:
        same = tested.get(content_digest(photograph.image))
        if same is None:
            found.append(photograph)
        else:
            left_out.append(f"{photograph.name}, there {same}")
    both = sorted({p.name for p in found} & {p.name for p in test})
    if both:
        raise ValueError(
            f"{len(both):,} names are in data.source.train and in data.source.test for other "
            f"pictures, such as {both[0]}; rename those of one (in shards, the members)"
        )
    if left_out:
        logger.warning(
            "%s photographs of data.source.train are in data.source.test, too (%s): they are not "
            "trained on",
            f"{len(left_out):,}",
            _shown(left_out),
        )
    return found


def _shown(names: Sequence[str]) -> str:
    return "; ".join(names[:SHOWN]) + "; …" * (len(names) > SHOWN)
