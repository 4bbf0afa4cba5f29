"""How well captions find their photographs and back, alone and against another model.

The positives of a caption are its own photograph alone; each model is searched in its own space.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keynet.evaluation.records import Record, Sheet
from keynet.replay.neighbours import BLOCK_ELEMENTS, STEP, Floats, Ints, similarities

TEXT_TO_IMAGE, IMAGE_TO_TEXT = "text_to_image", "image_to_text"
TOP = 10
RESAMPLES = 1000
SEED = 0


class CaptionVectors(NamedTuple):
    """One model's vectors of captioned photographs, of any norm but zero.

    Args:
        image: float32 [P, D], one row a photograph.
        text: float32 [C, D], one row a caption.
    """

    image: Floats
    text: Floats


def ranks(vectors: CaptionVectors, picture_of: Ints) -> tuple[Ints, Ints]:
    """Return where each caption's photograph, and each photograph's best caption, comes in.

    Args:
        vectors: P photographs, C captions.
        picture_of: int [C], the photograph of each caption.

    Returns:
        text_to_image: int64 [C], 1 is best; photographs equally near stand before the right one.
        image_to_text: int64 [P], of the best own caption; others' equally near stand before it,
            further own captions do not.

    Raises:
        ValueError: When vectors and ``picture_of`` are empty, do not fit, or are no directions.
    """
    unit = _unit(vectors)
    _check_pictures(unit, picture_of)
    best = np.full(len(unit.image), -np.inf, dtype=np.float32)
    own = np.empty(len(unit.text), dtype=np.float32)
    text_to_image = np.empty(len(unit.text), dtype=np.int64)
    for rows, sims in _blocks(unit):
        own[rows] = sims[np.arange(len(sims)), picture_of[rows]]
        np.maximum.at(best, picture_of[rows], own[rows])
        text_to_image[rows] = (sims >= own[rows, None]).sum(axis=1)
    # Computed twice rather than kept: 25k captions of 5k photographs take 500 MB.
    as_near = np.zeros(len(unit.image), dtype=np.int64)
    for _, sims in _blocks(unit):
        as_near += (sims >= best).sum(axis=0)
    as_near -= np.bincount(picture_of[own >= best[picture_of]], minlength=len(unit.image))
    return text_to_image, as_near + 1


def recall_records(vectors: CaptionVectors, picture_of: Ints, sheet: Sheet) -> list[Record]:
    """Return recall at 1 and at 10, both ways, with 95 % bootstrap intervals over photographs.

    Args:
        vectors: P photographs, C captions.
        picture_of: int [C], the photograph of each caption.
        sheet: Its subset gives way to the direction.

    Raises:
        ValueError: As ``ranks``.
    """
    text_to_image, image_to_text = ranks(vectors, picture_of)
    photographs = np.arange(len(image_to_text))
    strangers = len(picture_of) - int(np.bincount(picture_of).min())
    return [
        _average(
            replace(sheet, subset=subset),
            f"recall_at_{k}",
            found <= k,
            photograph,
            _given_away(worst, k),
        )
        for subset, found, photograph, worst in (
            (TEXT_TO_IMAGE, text_to_image, picture_of, len(photographs)),
            (IMAGE_TO_TEXT, image_to_text, photographs, strangers + 1),
        )
        for k in (1, TOP)
    ]


def compared_records(
    student: CaptionVectors,
    teacher: CaptionVectors,
    picture_of: Ints,
    sheet: Sheet,
    teacher_name: str,
) -> list[Record]:
    """Return what a student keeps of its teacher, text to image: retention and overlap at 10.

    Retention is the student's recall over the teacher's; overlap is the share of the ten nearest
    photographs that both name for a caption, of equally near ones those of lower index.

    Args:
        student: P photographs, C captions.
        teacher: The same photographs and captions; the dimension may differ.
        picture_of: int [C], the photograph of each caption.
        sheet: The student's; its subset gives way to ``against(teacher_name)``.
        teacher_name: The method that the teacher's own records carry.

    Raises:
        ValueError: As ``ranks``, or when the two differ in how many there are.
    """
    mine, theirs = _both(student, teacher, picture_of, sheet.method, teacher_name)
    here = replace(sheet, subset=against(teacher_name))
    count = len(mine.image)
    k = min(TOP, count)
    named = (_nearest(mine, k)[:, :, None] == _nearest(theirs, k)[:, None, :]).sum(axis=(1, 2))
    note = f"only {count} photographs: any two models name them all" if count <= TOP else ""
    return [
        _retention(_found(mine, picture_of), _found(theirs, picture_of), picture_of, here, note),
        _average(here, "overlap_at_10", named, picture_of, note, out_of=k),
    ]


def gain_record(
    mine: CaptionVectors, other: CaptionVectors, picture_of: Ints, sheet: Sheet, other_name: str
) -> Record:
    """Return recall at 10, text to image, less another model's on the same pictures.

    The interval is paired: both are counted on the same resamples of photographs.

    Args:
        mine: P photographs, C captions.
        other: The same photographs and captions; the dimension may differ.
        picture_of: int [C], the photograph of each caption.
        sheet: That of ``mine``; its subset gives way to ``against(other_name)``.
        other_name: The method that the other model's own records carry.

    Raises:
        ValueError: As ``ranks``, or when the two differ in how many there are.
    """
    a, b = _both(mine, other, picture_of, sheet.method, other_name)
    gained = _found(a, picture_of).astype(np.int64) - _found(b, picture_of)
    here = replace(sheet, subset=against(other_name))
    return _average(here, "recall_at_10_gain", gained, picture_of, _given_away(len(a.image), TOP))


def against(name: str) -> str:
    """Return the subset of figures that set a method beside the method ``name``."""
    return f"{TEXT_TO_IMAGE}:{name}"


def _retention(
    mine: NDArray[np.bool_], theirs: NDArray[np.bool_], picture_of: Ints, sheet: Sheet, note: str
) -> Record:
    name = sheet.subset.partition(":")[2]
    if not theirs.any():
        nothing = f"{name} finds no caption's photograph among its ten"
        return sheet.figure("retention_at_10", None, n=len(mine), note=nothing)
    drawn = _resampled(np.stack([_per_photograph(v, picture_of) for v in (mine, theirs)], axis=1))
    usable = drawn[drawn[:, 1] > 0]
    # Few photographs, of which the teacher finds fewer still: some resamples hold none of those.
    dropped = RESAMPLES - len(usable)
    if dropped:
        note = f"interval without the {dropped} resamples in which {name} finds none"
    ends = _interval(usable[:, 0] / usable[:, 1])
    return sheet.figure("retention_at_10", float(mine.sum() / theirs.sum()), *ends, len(mine), note)


def _average(
    sheet: Sheet,
    metric: str,
    values: NDArray[np.generic],
    photograph: Ints,
    note: str,
    out_of: int = 1,
) -> Record:
    """Mean of ``values`` / ``out_of`` over queries [Q], resampled by their photographs [Q]."""
    total, queries = _per_photograph(values, photograph), np.bincount(photograph).astype(float)
    drawn = _resampled(np.stack([total, queries], axis=1))
    ends = _interval(drawn[:, 0] / drawn[:, 1] / out_of)
    value = float(total.sum() / queries.sum() / out_of)
    return sheet.figure(metric, value, *ends, len(photograph), note)


def _per_photograph(values: NDArray[np.generic], photograph: Ints) -> NDArray[np.float64]:
    sums = np.zeros(int(photograph.max()) + 1)
    np.add.at(sums, photograph, values.astype(np.float64))
    return sums


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)


def _resampled(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Totals [RESAMPLES, K] of ``sums`` [P, K]; for one P always the same photographs."""
    rng, count = np.random.default_rng(SEED), len(sums)
    draws = (
        np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(RESAMPLES)
    )
    return np.stack([drawn @ sums for drawn in draws])


def _given_away(worst: int, k: int) -> str:
    return f"any model has a recall of 1: no rank is worse than {worst}" if worst <= k else ""


def _found(unit: CaptionVectors, picture_of: Ints) -> NDArray[np.bool_]:
    """Whether each caption [C] has its photograph among the ten nearest, ties against it."""
    found = np.empty(len(unit.text), dtype=np.bool_)
    for rows, sims in _blocks(unit):
        own = sims[np.arange(len(sims)), picture_of[rows]]
        found[rows] = (sims >= own[:, None]).sum(axis=1) <= TOP
    return found


def _nearest(unit: CaptionVectors, k: int) -> Ints:
    """The ``k`` photographs nearest to each caption, int [C, k], in no order."""
    nearest = np.empty((len(unit.text), k), dtype=np.int64)
    index = np.arange(len(unit.image))
    for rows, sims in _blocks(unit):
        # Similarities are whole steps: as integers with the index below them, none are equal.
        order = np.rint(sims / STEP).astype(np.int64) * len(index) - index
        nearest[rows] = np.argpartition(order, -k, axis=1)[:, -k:]
    return nearest


def _blocks(unit: CaptionVectors) -> Iterator[tuple[slice, Floats]]:
    """Some captions at a time, and their similarities to all photographs [rows, P]."""
    block = max(1, BLOCK_ELEMENTS // len(unit.image))
    for start in range(0, len(unit.text), block):
        rows = slice(start, start + block)
        yield rows, similarities(unit.text[rows], unit.image)


def _both(
    mine: CaptionVectors, other: CaptionVectors, picture_of: Ints, my_name: str, other_name: str
) -> tuple[CaptionVectors, CaptionVectors]:
    a, b = _unit(mine, f"{my_name} "), _unit(other, f"{other_name} ")
    if (len(a.image), len(a.text)) != (len(b.image), len(b.text)):
        raise ValueError(
            f"{my_name} has {len(a.image)} photographs and {len(a.text)} captions, {other_name} "
            f"{len(b.image)} and {len(b.text)}; encode the same ones with both"
        )
    _check_pictures(a, picture_of)
    return a, b


def _unit(vectors: CaptionVectors, whose: str = "") -> CaptionVectors:
    """``vectors`` with rows of norm 1, once they are sound."""
    image = _directions(vectors.image, f"{whose}image", "photograph")
    text = _directions(vectors.text, f"{whose}text", "caption")
    if image.shape[1] != text.shape[1]:
        raise ValueError(
            f"{whose}image has {image.shape[1]} dimensions, {whose}text {text.shape[1]}; "
            "give both in one space"
        )
    return CaptionVectors(image, text)


def _check_pictures(vectors: CaptionVectors, picture_of: Ints) -> None:
    count = len(vectors.image)
    if picture_of.shape != (len(vectors.text),) or picture_of.dtype.kind != "i":
        raise ValueError(
            f"picture_of is {picture_of.dtype} {picture_of.shape} for {len(vectors.text)} captions;"
            " give one signed integer a caption"
        )
    outside = (picture_of < 0) | (picture_of >= count)
    if outside.any():
        at = int(np.argmax(outside))
        raise ValueError(
            f"picture_of[{at}] is {picture_of[at]}, but there are {count} photographs; "
            f"give 0 to {count - 1}"
        )
    captions = np.bincount(picture_of, minlength=count)
    if not captions.all():
        raise ValueError(
            f"photograph {np.argmin(captions)} has no caption; leave out such rows of image"
        )


def _directions(rows: Floats, name: str, one: str) -> Floats:
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"{name} has shape {rows.shape}; give a non-empty matrix, a row a {one}")
    # In float64, where squares of large and of tiny values survive.
    norm = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    wrong = ~(np.isfinite(norm) & (norm > 0))[:, 0]
    if wrong.any():
        at = int(np.argmax(wrong))
        what = "is zero" if norm[at, 0] == 0 else "is not finite"
        raise ValueError(f"{name} row {at} {what}; give each {one} a finite direction")
    return np.asarray(rows / norm, dtype=np.float32)
