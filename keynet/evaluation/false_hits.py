"""What kind of mistake a false hit is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from keynet.evaluation.cuts import NAMING, base_of_family
from keynet.evaluation.labels import Labels

KINDS = ("negation", "other_question", "near_concept", "other_picture", "other_both")


class Asked(NamedTuple):
    """What was asked, of what."""

    entity: int
    intent: int
    family: str
    argument: str
    negated: bool

    @staticmethod
    def of(labels: Labels, index: int) -> Asked:
        return Asked(
            int(labels.entity[index]),
            int(labels.intent[index]),
            str(base_of_family(labels.kind_of_intent[index : index + 1])[0]),
            str(labels.argument[index]),
            bool(labels.negated[index]),
        )


def kind_of_false_hit(query: Asked, served: Asked) -> str:
    """One of ``KINDS``; the first that fits.

    * ``negation``: the same question but for its negation.
    * ``near_concept``: both ask for a name, of another entity.
    * ``other_picture``: the same intent, to which this picture answers otherwise.
    * ``other_question``: the same entity, another intent.
    * ``other_both``: another entity and another intent.
    """
    same_entity = query.entity == served.entity and query.entity >= 0
    same_frame = (query.family, query.argument) == (served.family, served.argument)
    if same_frame and query.negated != served.negated:
        return "negation"
    if query.family == served.family and query.family in NAMING and not same_entity:
        return "near_concept"
    if query.intent == served.intent:
        return "other_picture"
    return "other_question" if same_entity else "other_both"


def count_kinds(labels: Labels, query: np.ndarray, served: np.ndarray) -> dict[str, int]:
    """How many of the false hits (requests ``query`` served by ``served``) are of each kind."""
    count = dict.fromkeys(KINDS, 0)
    for asked, got in zip(query.tolist(), served.tolist(), strict=True):
        count[kind_of_false_hit(Asked.of(labels, asked), Asked.of(labels, got))] += 1
    return count
