from __future__ import annotations

import numpy as np
import pytest

from keynet.evaluation.cuts import base_of_family, cut, subsets
from keynet.evaluation.labels import Labels

SUBSETS = ["all", "same_drawing", "negation", "image_only", "text_only"]
VENDORS = ["other_vendor:A->B", "other_vendor:B->A"]


def pairs(labels: Labels, *names: str, index: np.ndarray) -> set[tuple[object, ...]]:
    return set(zip(*(getattr(labels, name)[index].tolist() for name in names), strict=True))


def test_subsets_are_those_the_labels_allow(labels: Labels) -> None:
    assert subsets(labels) == SUBSETS + VENDORS
    bare = labels.take((labels.vendor == "A") & ~labels.negated & (labels.modalities != "image"))
    assert subsets(bare) == ["all", "same_drawing"]


@pytest.mark.parametrize("disjoint", [True, False])
@pytest.mark.parametrize("subset", SUBSETS + VENDORS)
def test_what_every_cut_promises(labels: Labels, subset: str, disjoint: bool) -> None:
    found = cut(labels, subset, 0, disjoint_phrasings=disjoint)
    # A text has a single exact form, so there are few queries without a picture.
    assert len(found.query) >= (4 if subset == "text_only" else 20)
    assert found.answerable.mean() == 0.5
    assert not set(found.store.tolist()) & set(found.query.tolist())
    stored = pairs(labels, "group", "modalities", index=found.store)
    for query, answerable in zip(found.query.tolist(), found.answerable.tolist(), strict=True):
        asked = (int(labels.group[query]), str(labels.modalities[query]))
        assert (asked in stored) == answerable
    unit = labels.exact if subset == "text_only" else labels.picture
    if subset.startswith("other_vendor:"):
        unit = labels.entity
    assert len(np.unique(unit[found.query])) == len(found.query)
    if disjoint:
        store = pairs(labels, "phrasing", index=found.store)
        assert not (store & pairs(labels, "phrasing", index=found.query)) - {(-1,)}
    assert not set(labels.exact[found.store]) & set(labels.exact[found.query])


def test_store_and_queries_share_no_picture(labels: Labels) -> None:
    for subset in ("all", "negation", "image_only"):
        found = cut(labels, subset, 0)
        shared = set(labels.picture[found.store]) & set(labels.picture[found.query])
        assert shared <= {-1}
    found = cut(labels, "text_only", 0)
    assert not set(labels.exact[found.store]) & set(labels.exact[found.query])
    few, many = (len(cut(labels, "all", 0, store_share=share).store) for share in (0.2, 0.6))
    assert few < many


@pytest.mark.parametrize("disjoint", [True, False])
def test_same_drawing_answers_from_the_same_picture(labels: Labels, disjoint: bool) -> None:
    found = cut(labels, "same_drawing", 0, disjoint_phrasings=disjoint)
    stored = pairs(labels, "group", "picture", index=found.store)
    asked = found.query[found.answerable]
    assert len(asked) > 20
    assert pairs(labels, "group", "picture", index=asked) <= stored
    worded = pairs(labels, "group", "picture", "phrasing", index=found.store)
    assert not worded & pairs(labels, "group", "picture", "phrasing", index=asked)


def test_other_vendor_asks_what_is_shown_in_the_other_vendor(labels: Labels) -> None:
    found = cut(labels, "other_vendor:B->A", 0)
    assert set(labels.vendor[found.store]) == {"B"}
    assert set(labels.vendor[found.query]) == {"A"}
    assert set(labels.kind_of_intent[np.append(found.query, found.store)]) == {"name", "describe"}
    novel = labels.entity[found.query[~found.answerable]]
    assert not set(novel) & set(labels.entity[found.query[found.answerable]])
    assert len(np.unique(labels.entity[found.query])) == len(found.query)


def test_modality_and_negation_slices(labels: Labels) -> None:
    expected = {
        "all": "image+text",
        "same_drawing": "image+text",
        "image_only": "image",
        "text_only": "text",
    }
    for subset, present in expected.items():
        found = cut(labels, subset, 0)
        assert set(labels.modalities[np.append(found.query, found.store)]) == {present}, subset
    negation = cut(labels, "negation", 0)
    families = labels.kind_of_intent[np.append(negation.query, negation.store)]
    assert set(families) == {"is_kind", "is_not_kind"}


def test_the_seed_decides(labels: Labels) -> None:
    one, again, other = (cut(labels, "all", seed) for seed in (0, 0, 1))
    assert (one.query == again.query).all()
    assert (one.store == again.store).all()
    assert len(one.query) != len(other.query) or (one.query != other.query).any()


def test_bad_arguments_are_named(labels: Labels) -> None:
    with pytest.raises(ValueError, match="subset 'alll' is unknown"):
        cut(labels, "alll")
    with pytest.raises(ValueError, match="store_share is 1"):
        cut(labels, "all", store_share=1.0)


def test_base_of_family_drops_the_negation() -> None:
    families = np.array(["is_not_kind", "not_is", "is_kind", "notable", ""])
    assert base_of_family(families).tolist() == ["is_kind", "is", "is_kind", "notable", ""]
