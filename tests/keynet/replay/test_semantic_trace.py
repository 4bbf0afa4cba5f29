from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keynet.replay.semantic_trace import SemanticTrace, footprint, map_to_requests
from keynet.replay.trace import TraceError, Visit

GROUP = np.repeat(np.arange(20), 3)  # 20 groups of 3 requests
MODALITIES = np.where(GROUP < 10, "image", np.where(GROUP < 18, "image+text", "text"))


def mapped(objects: list[int], **options: object) -> SemanticTrace:
    visits = [Visit(float(at), asked, 5, 2.0, "s") for at, asked in enumerate(objects)]
    given = {"most": 10**6, **options}
    return map_to_requests(visits, GROUP, MODALITIES, **given)  # type: ignore[arg-type]


@given(objects=st.lists(st.integers(0, 50), min_size=1, max_size=80), seed=st.integers(0, 9))
def test_a_request_comes_again_only_when_its_group_is_used_up(
    objects: list[int], seed: int
) -> None:
    trace = mapped(objects, seed=seed)
    used: Counter[int] = Counter()
    for request, verbatim in zip(trace.request.tolist(), trace.verbatim.tolist(), strict=True):
        group = np.flatnonzero(GROUP[request] == GROUP)
        assert used[request] == min(used[other] for other in group.tolist())
        assert verbatim == (used[request] > 0)
        used[request] += 1


@given(objects=st.lists(st.integers(0, 50), min_size=1, max_size=80), seed=st.integers(0, 9))
def test_an_object_stays_in_its_group_and_groups_are_dealt_evenly(
    objects: list[int], seed: int
) -> None:
    trace = mapped(objects, seed=seed)
    group_of: dict[int, int] = {}
    for asked, request in zip(objects, trace.request.tolist(), strict=True):
        assert group_of.setdefault(asked, int(GROUP[request])) == GROUP[request]
    dealt = Counter(group_of.values())
    assert max(dealt.values()) - (min(dealt.values()) if len(dealt) == 20 else 0) <= 1
    assert len(set(trace.object.tolist())) == len(group_of)


def test_seeds_decide_and_the_most_cuts() -> None:
    objects = list(range(40))
    assert (mapped(objects).request == mapped(objects).request).all()
    assert (mapped(objects).request != mapped(objects, seed=1).request).any()
    assert len(mapped(objects, most=7)) == 7


def test_shares_choose_modalities() -> None:
    objects = list(range(400))
    only = mapped(objects, shares={"image+text": 1.0})
    assert set(MODALITIES[only.request].tolist()) == {"image+text"}
    half = mapped(objects, shares={"image": 1, "text": 1})
    counts = Counter(MODALITIES[half.request].tolist())
    assert set(counts) == {"image", "text"} and 150 < counts["image"] < 250
    drift = mapped(objects, shares={"image": 1}, shares_at_end={"text": 1}, most=400)
    early, late = (MODALITIES[drift.request[part]] for part in (slice(100), slice(300, 400)))
    assert (early == "text").mean() < 0.25 and (late == "text").mean() > 0.75


def test_shares_that_cannot_be() -> None:
    with pytest.raises(TraceError, match=r"no requests of 'audio'; there are image, image\+text"):
        mapped([1], shares={"audio": 1})
    with pytest.raises(TraceError, match="not all 0"):
        mapped([1], shares={"image": 0})
    with pytest.raises(TraceError, match="no visit is left"):
        mapped([])


def test_arrivals_lend_times_sizes_and_costs() -> None:
    trace = mapped([1, 2, 1]).arriving(Visit(10.0 + at, None, 7 + at, 0.5) for at in range(9))
    assert trace.time.tolist() == [10, 11, 12]
    assert trace.size.tolist() == [7, 8, 9] and trace.cost.tolist() == [0.5] * 3
    with pytest.raises(TraceError, match="1 arrivals for 3 visits"):
        trace.arriving([Visit(0, None)])


def test_footprint_counts_groups_of_each_scope() -> None:
    trace = mapped([1, 1, 2, 3])
    assert footprint(trace, GROUP) == 3
    trace.scope[1] = "t"
    assert footprint(trace, GROUP) == 4
    assert trace.take(np.array([True, False, True, False])).object.tolist() == [0, 1]
