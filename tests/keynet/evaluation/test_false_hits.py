from __future__ import annotations

import numpy as np
import pytest

from keynet.evaluation.false_hits import Asked, count_kinds, kind_of_false_hit
from keynet.evaluation.labels import Labels

NAME = Asked(entity=1, intent=0, family="name", argument="", negated=False)
IS_RED = Asked(entity=1, intent=1, family="is", argument="red", negated=False)


@pytest.mark.parametrize(
    ("query", "served", "kind"),
    [
        (IS_RED, IS_RED._replace(intent=2, negated=True), "negation"),
        (IS_RED, IS_RED._replace(intent=2, negated=True, entity=5), "negation"),
        (IS_RED, IS_RED._replace(intent=3, negated=True, argument="blue"), "other_question"),
        (IS_RED, IS_RED._replace(intent=4, argument="blue"), "other_question"),
        (IS_RED, NAME, "other_question"),
        (NAME, NAME._replace(entity=2), "near_concept"),
        (NAME, NAME._replace(entity=2, intent=9), "near_concept"),  # in another language
        (NAME, NAME._replace(intent=9), "other_question"),
        (IS_RED, IS_RED._replace(entity=2), "other_picture"),
        (IS_RED, IS_RED, "other_picture"),  # another drawing of the entity, answered otherwise
        (IS_RED, NAME._replace(entity=2), "other_both"),
        (NAME._replace(entity=-1), IS_RED._replace(entity=-1), "other_both"),
    ],
)  # fmt: skip
def test_kind(query: Asked, served: Asked, kind: str) -> None:
    assert kind_of_false_hit(query, served) == kind


def test_counts_by_labels(labels: Labels) -> None:
    a = np.flatnonzero((labels.kind_of_intent == "is_kind") & (labels.argument == "1"))[:1]
    b = np.flatnonzero((labels.kind_of_intent == "is_not_kind") & (labels.argument == "1"))[:1]
    names = np.flatnonzero(labels.kind_of_intent == "name")
    other = names[labels.entity[names] != labels.entity[names[0]]][:1]
    count = count_kinds(labels, np.append(a, names[:1]), np.append(b, other))
    assert count == {
        "negation": 1,
        "near_concept": 1,
        "other_question": 0,
        "other_picture": 0,
        "other_both": 0,
    }
