"""How undecided a key's match is, and how often what it matches is wrong (C6)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keynet.replay.curve_fit import CurveFit, Values, fit_curve
from keynet.replay.neighbours import Floats, Ints

TEMPERATURE = 0.07  # K3 of the specification
ONSET = 2.1  # nats; C6


class Matches(NamedTuple):
    """The match of each visit that found entries in its scope.

    Args:
        entropy: float64 [M], nats, of the softmax over all entries.
        wrong: bool [M], whether the nearest entry is not equivalent.
        answerable: bool [M], whether any entry is.
    """

    entropy: Values
    wrong: NDArray[np.bool_]
    answerable: NDArray[np.bool_]


def match_entropy(similarity: Floats, temperature: float = TEMPERATURE) -> float:
    """Return the Shannon entropy of softmax(similarity / temperature), in nats.

    Args:
        similarity: float32 [E], to each entry.
    """
    scaled = similarity.astype(np.float64) / temperature
    scaled -= scaled.max()
    mass = np.exp(scaled)
    total = float(mass.sum())
    # H = log Z - sum p z, which needs no logarithm of a mass that is 0.
    return float(np.log(total) - (mass @ scaled) / total)


def matches(
    vectors: Floats,
    group: Ints,
    scope: NDArray[np.generic],
    order: Ints,
    stored: NDArray[np.bool_],
    temperature: float = TEMPERATURE,
) -> Matches:
    """Return the match of each visit with what a cache held at that time.

    Args:
        vectors: float32 [N, D], unit rows.
        group: int64 [N], equal = equivalent.
        scope: [N], requests of different scope never meet.
        order: int64 [V], requests as visited.
        stored: bool [V], whether the visit's request was stored.
    """
    rooms: dict[object, tuple[Floats, list[int]]] = {}
    entropy, wrong, answerable = [], [], []
    for request, kept in zip(order.tolist(), stored.tolist(), strict=True):
        name = scope[request]
        if name not in rooms:
            rooms[name] = (np.empty((int(stored.sum()), vectors.shape[1]), np.float32), [])
        rows, there = rooms[name]
        if there:
            similarity = rows[: len(there)] @ vectors[request]
            entropy.append(match_entropy(similarity, temperature))
            wrong.append(group[there[int(similarity.argmax())]] != group[request])
            answerable.append(bool((group[there] == group[request]).any()))
        if kept:
            rows[len(there)] = vectors[request]
            there.append(request)
    return Matches(np.array(entropy), np.array(wrong, bool), np.array(answerable, bool))


def fit_pollution(found: Matches, onset: float | None = ONSET) -> CurveFit:
    """Fit pollution = 1 - exp(-a max(0, H - onset)) to whether each match was wrong.

    Args:
        found: Of one or several replays.
        onset: Nats; None fits it as the second parameter.

    Raises:
        ValueError: There are too few matches.

    Source: A3.3 of the specification.
    """

    def above(p: Values, h: Values) -> Values:
        return np.maximum(0.0, h - (p[1] if onset is None else onset))

    def curve(p: Values, h: Values) -> Values:
        polluted: Values = 1 - np.exp(-p[0] * above(p, h))
        return polluted

    def slopes(p: Values, h: Values) -> Values:
        x = above(p, h)
        left = np.exp(-p[0] * x)
        columns = [x * left] if onset is not None else [x * left, -p[0] * left * (x > 0)]
        return np.stack(columns, axis=1)

    h, wrong = found.entropy, found.wrong.astype(np.float64)
    if onset is not None:
        return fit_curve(curve, slopes, h, wrong, [0.75])
    # The kink has many local minima: begin at each of several quantiles.
    starts = np.quantile(h, np.linspace(0, 0.9, 10)).tolist()
    tried = [fit_curve(curve, slopes, h, wrong, [0.75, start]) for start in starts]
    return max(tried, key=lambda fit: fit.r2)


def by_entropy(found: Matches, bins: int = 12) -> tuple[Values, Values, Ints]:
    """Return mean entropy, share of wrong matches and count in bins of as many matches."""
    order = np.argsort(found.entropy, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return (
        np.array([found.entropy[part].mean() for part in parts]),
        np.array([found.wrong[part].mean() for part in parts]),
        np.array([len(part) for part in parts], np.int64),
    )


def r2_of_bins(found: Matches, fit: CurveFit, onset: float | None = ONSET) -> float:
    """Return how well a fit describes ``by_entropy``: 1 - its squared error over a constant's.

    Args:
        fit: Of ``fit_pollution`` with the same onset.
    """
    entropy, wrong, count = by_entropy(found)
    above = np.maximum(0.0, entropy - (fit.values[1] if onset is None else onset))
    rest = wrong - (1 - np.exp(-fit.values[0] * above))
    around = wrong - np.average(wrong, weights=count)
    return float(1 - (count @ rest**2) / (count @ around**2))
