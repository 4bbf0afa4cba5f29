"""Cuts a split into a fixed store and independent queries, half answerable and half novel."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keynet.evaluation.labels import Ints, Labels

Mask = NDArray[np.bool_]

OTHER_VENDOR = "other_vendor:"
NAMING = ("name", "describe")  # families that ask what is shown, in words or by the picture alone


@dataclass(frozen=True)
class Cut:
    """A fixed store and the queries put to it.

    Args:
        subset: Name of the slice.
        store: int64 [S], requests in the store, in random order (ties go to the first).
        query: int64 [Q], one request a picture.
        answerable: bool [Q], whether the store holds an equivalent request; else it holds none.
    """

    subset: str
    store: Ints
    query: Ints
    answerable: Mask


def subsets(labels: Labels) -> list[str]:
    """Subsets that the labels allow, ``all`` first."""
    named = ["all"]
    if (labels.picture >= 0).any():
        named.append("same_drawing")
    if labels.negated.any():
        named.append("negation")
    present = set(labels.modalities.tolist())
    if len(present) > 1:
        named += [f"{m}_only" for m in ("image", "text") if m in present]
    vendors = sorted(set(labels.vendor[np.isin(labels.kind_of_intent, NAMING)].tolist()) - {""})
    return named + [f"{OTHER_VENDOR}{a}->{b}" for a, b in permutations(vendors, 2)]


def cut(
    labels: Labels,
    subset: str,
    seed: int = 0,
    *,
    disjoint_phrasings: bool = True,
    store_share: float = 0.3,
) -> Cut:
    """Store and queries of ``subset``, equal for equal arguments; empty when nothing fits.

    * ``all``: store and queries share no picture; the store takes ``store_share`` of them.
    * ``negation``, ``image_only``, ``text_only``: as ``all``, within a slice.
    * ``same_drawing``: a query's picture is in the store by another request.
    * ``other_vendor:A->B``: drawings of A stored, names of drawings of B asked; half of the
      entities are absent from the store.

    Args:
        disjoint_phrasings: Store and queries share no phrasing of an intent either.
        store_share: Share of pictures that go to the store, in (0, 1).
    """
    if not 0 < store_share < 1:
        raise ValueError(f"store_share is {store_share}; give a share between 0 and 1")
    rng = np.random.default_rng([seed, zlib.crc32(subset.encode())])
    pool = _pool(labels, subset)
    unit = units(labels)
    partner, novel_by = labels.group, labels.group
    if subset.startswith(OTHER_VENDOR):
        stored, asked = subset.removeprefix(OTHER_VENDOR).split("->")
        store = pool & (labels.vendor == stored)
        query = pool & (labels.vendor == asked)
        unit = novel_by = labels.entity
    elif subset == "same_drawing":
        store = pool & (rng.random(len(labels)) < 0.5)
        query = pool & ~store
        partner = _joint(labels.group, labels.picture)
    else:
        names = rng.permutation(np.unique(unit[pool]))
        store = pool & np.isin(unit, names[: round(store_share * len(names))])
        query = pool & ~store
    if disjoint_phrasings:
        first_half = _phrasing_halves(labels, rng)
        if subset == "same_drawing":  # the halves part the requests already
            store, query = pool & first_half, pool & ~first_half
        else:
            unworded = labels.phrasing < 0
            store, query = store & (first_half | unworded), query & (~first_half | unworded)
    elif subset == "same_drawing":  # at least not the same question of the same picture
        worded = _joint(partner, labels.phrasing)
        query &= ~np.isin(worded, worded[store]) | (labels.phrasing < 0)
    verbatim = _codes(labels.exact)
    query &= ~np.isin(verbatim, verbatim[store])
    return _draw(subset, store, query, labels.group, partner, novel_by, unit, rng)


def _draw(
    subset: str,
    store: Mask,
    query: Mask,
    group: Ints,
    partner: Ints,
    novel_by: Ints,
    unit: Ints,
    rng: np.random.Generator,
) -> Cut:
    """Takes half of ``novel_by`` out of the store, then one query a unit, half of them novel."""
    names = rng.permutation(np.unique(novel_by[query]))
    store = store & ~np.isin(novel_by, names[: len(names) // 2])
    answerable = query & np.isin(partner, partner[store])
    novel = query & ~np.isin(group, group[store])
    shuffled = rng.permutation(len(store))

    def one_each(mask: Mask) -> dict[int, int]:
        index = shuffled[mask[shuffled]]
        units, first = np.unique(unit[index], return_index=True)
        return dict(zip(units.tolist(), index[first].tolist(), strict=True))

    yes, no = one_each(answerable), one_each(novel)
    either = rng.permutation(sorted(yes.keys() & no.keys())).astype(np.int64).tolist()
    only_yes = rng.permutation(sorted(yes.keys() - no.keys())).astype(np.int64).tolist()
    only_no = rng.permutation(sorted(no.keys() - yes.keys())).astype(np.int64).tolist()
    to_yes = min(max((len(only_no) + len(either) - len(only_yes)) // 2, 0), len(either))
    chosen_yes, chosen_no = either[:to_yes] + only_yes, either[to_yes:] + only_no
    half = min(len(chosen_yes), len(chosen_no))
    queries = [yes[u] for u in chosen_yes[:half]] + [no[u] for u in chosen_no[:half]]
    return Cut(
        subset,
        store=shuffled[store[shuffled]].astype(np.int64),
        query=np.array(queries, dtype=np.int64),
        answerable=np.arange(2 * half) < half,
    )


def with_both(labels: Labels) -> Mask:
    """Requests with image and text: the headline's. Others are caches, and subsets, of their own.

    All requests, where none has both.
    """
    both = np.asarray(labels.modalities == "image+text")
    return both if both.any() else np.ones(len(labels), dtype=bool)


def _pool(labels: Labels, subset: str) -> Mask:
    if subset in ("all", "same_drawing"):
        return with_both(labels)
    if subset in ("image_only", "text_only"):
        return np.asarray(labels.modalities == subset.removesuffix("_only"))
    if subset == "negation":
        frame = _joint(_codes(base_of_family(labels.kind_of_intent)), _codes(labels.argument))
        pool = with_both(labels)
        both = np.intersect1d(frame[pool & labels.negated], frame[pool & ~labels.negated])
        return np.asarray(pool & np.isin(frame, both))
    if subset.startswith(OTHER_VENDOR) and "->" in subset:
        return np.asarray(np.isin(labels.kind_of_intent, NAMING) & (labels.entity >= 0))
    raise ValueError(f"subset {subset!r} is unknown; the labels allow {subsets(labels)}")


def base_of_family(family: NDArray[np.str_]) -> NDArray[np.str_]:
    """Families of intents without their negation: ``is_not_kind`` becomes ``is_kind``."""
    names, at = np.unique(family, return_inverse=True)
    bases = ["_".join(part for part in n.split("_") if part != "not") for n in names.tolist()]
    return np.array(bases, dtype=np.str_)[at]


def units(labels: Labels) -> Ints:
    """Picture, or text where there is none: queries of one unit are not independent."""
    by_text: Ints = np.where(labels.picture >= 0, labels.picture, -2 - _codes(labels.content))
    return by_text


def _phrasing_halves(labels: Labels, rng: np.random.Generator) -> Mask:
    """Whether each request is phrased by the first half of its family's phrasings.

    The halves are balanced within each group, so that a language with two phrasings gets one in
    each. Requests without a phrasing are split at random.
    """
    family = np.where(labels.kind_of_intent == "", labels.intent.astype(str), labels.kind_of_intent)
    wording = _joint(_codes(family), labels.phrasing)
    side: dict[int, bool] = {}
    shuffled = rng.permutation(len(labels))
    by_group = shuffled[np.argsort(labels.group[shuffled], kind="stable")]
    starts = np.flatnonzero(np.diff(labels.group[by_group], prepend=-1))
    for members in rng.permutation(len(starts)).tolist():
        end = starts[members + 1] if members + 1 < len(starts) else len(by_group)
        wordings = dict.fromkeys(wording[by_group[starts[members] : end]].tolist())
        first = sum(side.get(w, False) for w in wordings)
        second = sum(w in side and not side[w] for w in wordings)
        for name in wordings:
            if name not in side:
                side[name] = first < second or (first == second and bool(rng.random() < 0.5))
                first, second = first + side[name], second + (not side[name])
    halves = np.array([side[w] for w in wording.tolist()], dtype=bool)
    return np.where(labels.phrasing >= 0, halves, rng.random(len(labels)) < 0.5)


def _codes(values: NDArray[Any]) -> Ints:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _joint(a: Ints, b: Ints) -> Ints:
    a, b = _codes(a), _codes(b)
    both: Ints = a * (int(b.max(initial=0)) + 1) + b
    return both
