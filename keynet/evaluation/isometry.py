"""How far the spaces of two modalities are from isometric, in figures.

Distances are Euclidean between rows scaled to norm 1: 0 to 2, and 1.41 where a cosine is 0.

**Relative distortion** of distances d' against distances d of the same pairs of photographs is the
mean of ``|s d' / d - 1|``, where s is the one scale that makes the sum of its squares least: 0 when
all distances have the same ratio, so that spaces of different spread can be compared.

* ``distortion_within_image`` and ``distortion_within_text``: a modality's own distances after an
  alignment against those before it.
* ``distortion_across``: distances between texts against those between their pictures, in the space
  that the figure is of.
* ``distortion_shuffled``: the same with the texts of other pictures. Distances of many dimensions
  are nearly equal, so that spaces which share nothing are a few percent apart: read across against
  this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keynet.evaluation.records import Record, Sheet

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
MODALITIES = ("image", "text")
MAX_PAIRS = 20_000  # of photographs, out of all
LEAST = 8  # photographs, below which an interval says nothing
RESAMPLES = 1000
BLOCK = 4096  # pairs whose rows are in memory at once


class PairedVectors(NamedTuple):
    """Photographs and a text of each, of any norm but zero; row i of both belongs together.

    Args:
        image: float32 [N, D1], distinct photographs.
        text: float32 [N, D2].
    """

    image: Floats
    text: Floats


def isometry_records(
    after: PairedVectors,
    sheet: Sheet,
    before: PairedVectors | None = None,
    *,
    max_pairs: int = MAX_PAIRS,
    seed: int = 0,
) -> list[Record]:
    """Return mean distances and relative distortions, with 95 % bootstrap intervals.

    Photographs are resampled, and with them all distances that they take part in.

    Args:
        after: The vectors to judge. Where the widths of both differ, there are no distances across.
        sheet: Of the records.
        before: The same photographs and texts before they were aligned; None leaves the distortion
            within open.
        max_pairs: Of photographs, drawn from all where there are more.
        seed: Of the draw and of the shuffle.

    Raises:
        ValueError: For vectors that do not fit, are no directions, or are fewer than 8.
    """
    unit = unit_pairs(after, "")
    count = len(unit.image)
    if before is not None:
        old = unit_pairs(before, "before: ")
        if len(old.image) != count:
            raise ValueError(
                f"{count} photographs after, {len(old.image)} before; give the same ones"
            )
    pairs = sampled_pairs(count, max_pairs, seed)
    image, text = (_distances(rows, rows, *pairs) for rows in unit)
    others = unit.text[np.random.default_rng(seed).permutation(count)]
    nowhere = f"image is {unit.image.shape[1]} wide, text {unit.text.shape[1]}: no common space"
    unknown = "nothing to compare with: not given, or nothing was aligned"
    found: dict[str, _Measured | str] = {
        "distance_within_image": _mean(image),
        "distance_within_text": _mean(text),
        "distance_across": nowhere,
        "distance_of_pairs": nowhere,
        "distortion_within_image": unknown,
        "distortion_within_text": unknown,
        "distortion_across": _distortion(text, image),
        "distortion_shuffled": _distortion(_distances(others, others, *pairs), image),
    }
    if unit.image.shape[1] == unit.text.shape[1]:
        # Of both pictures to the other's text, else the order of the photographs would matter.
        there, back = _distances(*unit, *pairs), _distances(*unit, *pairs[::-1])
        found["distance_across"] = _mean((there + back) / 2)
        everyone = np.arange(count)
        found["distance_of_pairs"] = _mean(_distances(*unit, everyone, everyone), of_pairs=False)
    if before is not None:
        for name, new, rows in zip(MODALITIES, (image, text), old, strict=True):
            found[f"distortion_within_{name}"] = _distortion(new, _distances(rows, rows, *pairs))
    return _with_intervals(found, pairs, count, sheet)


def relative_distortion(
    changed: Doubles, reference: Doubles, weight: Doubles | None = None
) -> float:
    """Return the mean of ``|s changed / reference - 1|`` at the s of least squares.

    It is 0 for distances of one ratio and 1 where all changed ones are 0; it is not symmetric.

    Args:
        changed: Distances [P].
        reference: Distances [P] of the same pairs, none of them 0.
        weight: How often each pair counts [P]; once by default.
    """
    ratio = changed / reference
    weight = np.ones_like(ratio) if weight is None else weight
    squares = weight @ ratio**2
    scale = weight @ ratio / squares if squares > 0 else 0.0
    return float(weight @ np.abs(scale * ratio - 1) / weight.sum())


def sampled_pairs(count: int, max_pairs: int, seed: int) -> tuple[Ints, Ints]:
    """Return distinct pairs i > j of ``count`` rows: all, or ``max_pairs`` drawn from them."""
    total = count * (count - 1) // 2
    if total <= max_pairs:
        number = np.arange(total)
    else:
        number = np.random.default_rng(seed).choice(total, max_pairs, replace=False, shuffle=False)
    # Pair number n is (i, n - i(i - 1)/2), counted row by row below the diagonal.
    i = ((1 + np.sqrt(1 + 8 * number.astype(np.float64))) / 2).astype(np.int64)
    i -= i * (i - 1) // 2 > number  # where the root was rounded up
    return i, number - i * (i - 1) // 2


class _Measured(NamedTuple):
    """A figure as a function of how often pairs [P] and photographs [N] count; NaN of none."""

    measure: Callable[[Doubles, Doubles], float]
    n: int
    note: str = ""


def _mean(values: Doubles, of_pairs: bool = True) -> _Measured:
    """Mean of a value for each pair of photographs [P], or for each photograph [N]."""

    def measure(pairs: Doubles, photographs: Doubles) -> float:
        weight = pairs if of_pairs else photographs
        return float(weight @ values / weight.sum()) if weight.any() else math.nan

    return _Measured(measure, len(values))


def _distortion(changed: Doubles, reference: Doubles) -> _Measured | str:
    known = reference > 0
    if not known.any():
        return "all distances to compare with are 0"
    left_out = len(known) - int(known.sum())
    changed, reference = changed[known], reference[known]

    def measure(pairs: Doubles, _: Doubles) -> float:
        weight = pairs[known]
        return relative_distortion(changed, reference, weight) if weight.any() else math.nan

    note = f"{left_out} pairs at distance 0 left out" if left_out else ""
    return _Measured(measure, len(known) - left_out, note)


def _with_intervals(
    found: Mapping[str, _Measured | str], pairs: tuple[Ints, Ints], count: int, sheet: Sheet
) -> list[Record]:
    measured = {name: what for name, what in found.items() if not isinstance(what, str)}
    drawn: dict[str, list[float]] = {name: [] for name in measured}
    rng = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        times = np.bincount(rng.integers(count, size=count), minlength=count).astype(np.float64)
        weight = times[pairs[0]] * times[pairs[1]]
        for name, what in measured.items():
            drawn[name].append(what.measure(weight, times))
    once = np.ones(len(pairs[0])), np.ones(count)
    records = []
    for name, entry in found.items():
        unit = "share" if name.startswith("distortion") else "distance"
        if isinstance(entry, str):
            records.append(sheet.figure(name, None, note=entry, unit=unit))
            continue
        value = entry.measure(*once)
        low, high = np.nanpercentile(drawn[name], (2.5, 97.5))
        records.append(
            sheet.figure(name, value, float(low), float(high), entry.n, entry.note, unit)
        )
    return records


def _distances(a: Floats, b: Floats, i: Ints, j: Ints) -> Doubles:
    """Return distances [P] between rows ``a[i]`` and ``b[j]``."""
    found = np.empty(len(i))
    for first in range(0, len(i), BLOCK):
        rows = slice(first, first + BLOCK)
        found[rows] = np.linalg.norm(a[i[rows]] - b[j[rows]], axis=1)
    return found


def unit_pairs(vectors: PairedVectors, whose: str) -> PairedVectors:
    """Return ``vectors`` with rows of norm 1.

    Args:
        vectors: Photographs and a text of each.
        whose: Starts the message of an error.

    Raises:
        ValueError: When the two differ in number, are fewer than 8, or have a row of no direction.
    """
    if len(vectors.image) != len(vectors.text):
        raise ValueError(
            f"{whose}{len(vectors.image)} rows of image, {len(vectors.text)} of text; "
            "give one text of each photograph"
        )
    if len(vectors.image) < LEAST:
        raise ValueError(f"{whose}{len(vectors.image)} photographs, at least {LEAST} are needed")
    units = []
    for name, rows in zip(MODALITIES, vectors, strict=True):
        if rows.ndim != 2:
            raise ValueError(f"{whose}{name} has shape {rows.shape}; give a row a photograph")
        norm = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        wrong = ~(np.isfinite(norm) & (norm > 0))[:, 0]
        if wrong.any():
            raise ValueError(
                f"{whose}{name} row {int(np.argmax(wrong))} is zero or not finite; "
                "give each a finite direction"
            )
        units.append(np.asarray(rows / norm, dtype=np.float32))
    return PairedVectors(*units)
