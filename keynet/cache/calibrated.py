"""Acceptance by the thresholds that were calibrated for an export, and travel in its manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from keynet.cache.acceptance import AcceptanceError, FixedRule, cosine
from keynet.cache.threshold import CLOSED_LOOP
from keynet.export.manifest import StoredThreshold
from keynet.types import Key, KeySpace

CALIBRATE = (
    "calibrate on this export: python -m scripts.calibrate export=EXPORT data=DATA budgets=[BUDGET]"
)


class Calibrated(Protocol):
    """What has thresholds; ``load_key_model`` returns one."""

    @property
    def space(self) -> KeySpace: ...

    @property
    def thresholds(self) -> Sequence[StoredThreshold]: ...


class CalibratedThresholds(FixedRule):
    """The threshold calibrated for a budget of false hits, by key space and modalities present.

    Requests of modalities for which none kept the budget are not served. That none kept it for any,
    or that none was calibrated, is an error.

    Args:
        models: One export, or the two of an A/B test.
        budget: Share of false hits among the served, as it was calibrated. 0 serves nothing and
            needs no threshold; 1 is refused, since all that is served could then be wrong.
        kind: ``closed_loop``, for a cache that fills itself, or ``fixed_store``, for one that is
            filled beforehand and is asked independent questions. One is not valid for the other.

    Raises:
        AcceptanceError: A model lacks such thresholds, or none keeps the budget (the message names
            those it has), or they are of another key space.
    """

    def __init__(
        self, models: Calibrated | Sequence[Calibrated], budget: float, kind: str = CLOSED_LOOP
    ) -> None:
        if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget < 1:
            hint = "; 1 % is 0.01" if budget == 1 else ""
            raise AcceptanceError(f"budget is {budget!r}; expected a share, 0 to less than 1{hint}")
        self._budget, self._kind = float(budget), kind
        self._values: dict[str, dict[str, float | None]] = {}  # by fingerprint, then modalities
        for model in models if isinstance(models, Sequence) else [models]:
            self._values[model.space.fingerprint] = self._of(model) if budget else {}

    def threshold(self, key: Key, modalities: str) -> float | None:
        """Return the calibrated similarity; None where nothing may be served."""
        known = self._values.get(key.space.fingerprint)
        if known is None:
            raise AcceptanceError(
                f"key is of key space {key.space.fingerprint}, the thresholds are of "
                f"{', '.join(self._values)}; give CalibratedThresholds the export that made the key"
            )
        if not self._budget:
            return None
        if modalities not in known:
            raise AcceptanceError(
                f"no {self._kind} threshold at {self._budget:g} for requests of {modalities}, only "
                f"for {', '.join(known)}; calibrate on data that has them, or give PerModalities a "
                "rule for them, such as FixedThreshold(None), which serves nothing"
            )
        return known[modalities]

    def _of(self, model: Calibrated) -> dict[str, float | None]:
        """Return the thresholds of a model for whole keys, by modalities."""
        space = model.space
        for one in model.thresholds:
            if one.key_space != space.fingerprint:
                raise AcceptanceError(
                    f"threshold for {one.data} is of key space {one.key_space}, the export's is "
                    f"{space.fingerprint}; {CALIBRATE}"
                )
        whole = [one for one in model.thresholds if one.bits is None]  # of codes: another measure
        found = [o for o in whole if (o.kind, o.budget) == (self._kind, self._budget)]
        values = {
            one.modalities: None if one.value is None else cosine("threshold", one.value)
            for one in found
        }
        if len(values) < len(found):
            raise AcceptanceError(f"two {self._kind} thresholds at {self._budget:g}; {CALIBRATE}")
        if not found:
            there = sorted({f"{one.kind} at {one.budget:g}" for one in whole})
            raise AcceptanceError(
                f"{space.name} ({space.fingerprint}) has no {self._kind} threshold at "
                f"{self._budget:g}, but {', '.join(there) or 'none at all'}; {CALIBRATE}"
            )
        if all(value is None for value in values.values()):
            kept = {o.budget for o in whole if o.kind == self._kind and o.value is not None}
            others = ", ".join(f"{budget:g}" for budget in sorted(kept)) or "none"
            raise AcceptanceError(
                f"no threshold of {space.name} ({space.fingerprint}) keeps {self._budget:g} on "
                f"{found[0].data}, so that nothing would ever be served; budgets that are kept: "
                f"{others}; take one, or, on more requests, {CALIBRATE}"
            )
        return values
