"""The thresholds that an export carries: one for each measure, pattern of modalities and budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from keynet.cache.threshold import Threshold
from keynet.evaluation.closed_loop import SINGLE_PASS, calibrate, slices
from keynet.evaluation.cuts import cut
from keynet.evaluation.fixed_store import fit, serve
from keynet.evaluation.labels import Labels
from keynet.evaluation.settings import MAIN_BUDGET, JudgeSettings
from keynet.export.manifest import StoredThreshold
from keynet.replay.neighbours import Floats, Neighbours


@dataclass(frozen=True)
class FittedThreshold:
    """A threshold and what it is for.

    Args:
        threshold: As fitted; its ``reason`` says why there is none.
        modalities: Those present in the requests.
        bits: Of the code that it compares; None for the vector.
    """

    threshold: Threshold
    modalities: str
    bits: int | None


def calibrate_keys(
    keys: Mapping[int | None, Floats],
    labels: Labels,
    budgets: Sequence[float],
    data: str,
    *,
    seed: int = 0,
    disjoint_phrasings: bool = True,
) -> list[FittedThreshold]:
    """Return the thresholds of both kinds for requests of each pattern of modalities.

    Args:
        keys: Unit rows [N, D] by bits; None for the vectors.
        labels: Of the N calibration requests.
        budgets: False hits / served, each in (0, 1).
        data: Name of the data.
        seed: Of cuts and orders.
        disjoint_phrasings: Whether a fixed store and its queries share no phrasing.

    Raises:
        ValueError: A budget is no share between 0 and 1.
    """
    sound = [isinstance(budget, (int, float)) and 0 < budget < 1 for budget in budgets]
    if not sound or not all(sound):
        raise ValueError(
            f"budgets={list(budgets)}: give shares between 0 and 1, such as [{MAIN_BUDGET}]; a "
            "cache with a budget of 0 serves nothing and needs no threshold"
        )
    settings = JudgeSettings(budgets=tuple({MAIN_BUDGET, *budgets}), seed=seed)
    found = []
    for bits, rows in keys.items():
        neighbours = Neighbours.of(rows, labels.scope)
        for subset, index in _patterns(labels).items():
            present = str(labels.modalities[index[0]])
            parts = cut(
                labels, subset, seed,
                disjoint_phrasings=disjoint_phrasings, store_share=settings.store_share,
            )  # fmt: skip
            served = serve(rows, labels, parts)
            in_loop = calibrate(neighbours, labels, index, settings, data)
            for budget in budgets:
                for threshold in (fit(served, budget, data), in_loop[budget]):
                    found.append(FittedThreshold(threshold, present, bits))
    return found


def stored(
    threshold: Threshold, modalities: str, bits: int | None, key_space: str
) -> StoredThreshold:
    """Return a threshold as the manifest of an export has it."""
    return StoredThreshold(
        kind=threshold.kind,
        modalities=modalities,
        bits=bits,
        value=threshold.value,
        budget=threshold.budget,
        confidence=threshold.confidence,
        data=f"{threshold.data}/calibration",
        n=threshold.n,
        key_space=key_space,
    )


def _patterns(labels: Labels) -> dict[str, np.ndarray]:
    """The requests of each pattern of modalities, by the name of a fixed store's subset."""
    passes = slices(labels)
    found = {"all": passes[SINGLE_PASS]}
    for subset in ("image_only", "text_only"):
        # Where no request has both, the one pattern there is has passed already.
        if len(set(labels.modalities.tolist())) > 1 and f"{SINGLE_PASS}:{subset}" in passes:
            found[subset] = passes[f"{SINGLE_PASS}:{subset}"]
    return found
