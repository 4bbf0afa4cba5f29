from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keynet.replay.sampling import sampled
from keynet.replay.trace import TraceError, Visit

VISITS = [Visit(float(at), at % 500) for at in range(3000)]


@given(share=st.floats(0.01, 1), seed=st.integers(0, 100))
def test_an_object_is_kept_with_all_its_visits_or_not_at_all(share: float, seed: int) -> None:
    kept = list(sampled(VISITS, share, seed))
    objects = {visit.object for visit in kept}
    assert kept == [visit for visit in VISITS if visit.object in objects]


def test_the_share_is_of_objects() -> None:
    kept = {visit.object for visit in sampled(VISITS, 0.3)}
    assert 110 < len(kept) < 190
    assert kept != {visit.object for visit in sampled(VISITS, 0.3, seed=1)}
    # A smaller sample is a part of a larger one.
    assert {visit.object for visit in sampled(VISITS, 0.1)} < kept
    assert list(sampled(VISITS, 1)) == VISITS


@pytest.mark.parametrize("share", [0, -1, 1.01, float("nan")])
def test_no_share(share: float) -> None:
    with pytest.raises(TraceError, match="expected a share of the objects"):
        list(sampled(VISITS, share))


def test_arrivals_cannot_be_sampled() -> None:
    with pytest.raises(TraceError, match="arrivals alone"):
        list(sampled([Visit(0, None)], 0.5))
