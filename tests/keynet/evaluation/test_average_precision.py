from __future__ import annotations

from fractions import Fraction
from itertools import groupby, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.evaluation import average_precision as module
from keynet.evaluation.average_precision import average_precision, mean_average_precision


def of_order(relevant: tuple[bool, ...], total: int, cutoff: int) -> Fraction:
    hits, found = 0, Fraction(0)
    for rank, right in enumerate(relevant[:cutoff], start=1):
        hits += right
        found += Fraction(hits, rank) if right else 0
    return found / min(total, cutoff)


def by_all_orders(distances: list[int], relevant: list[bool], cutoff: int | None) -> float:
    """The mean over every order of every tie, exactly."""
    ranked = sorted(zip(distances, relevant, strict=True))
    ties = [[right for _, right in tie] for _, tie in groupby(ranked, key=lambda pair: pair[0])]
    orders = list(product(*(list(permutations(tie)) for tie in ties)))
    last = len(distances) if cutoff is None else cutoff
    values = [of_order(sum(order, ()), sum(relevant), last) for order in orders]
    return float(sum(values) / len(values))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6),
    st.sampled_from([None, 1, 2, 3, 5, 9]),
)
def test_it_is_the_mean_over_all_orders_of_ties(
    rows: list[tuple[int, bool]], cutoff: int | None
) -> None:
    distances, relevant = [d for d, _ in rows], [r for _, r in rows]
    found = average_precision(np.array([distances]), np.array([relevant]), cutoff)[0]
    if not any(relevant):
        assert np.isnan(found)
    else:
        assert found == pytest.approx(by_all_orders(distances, relevant, cutoff), abs=1e-12)


def test_without_ties_it_is_average_precision() -> None:
    # Relevant at ranks 1, 3 and 4: (1 + 2/3 + 3/4) / 3; of the first two ranks, 1 / 2.
    distances, relevant = np.array([[5, 9, 7, 6]]), np.array([[True, True, True, False]])
    assert average_precision(distances, relevant)[0] == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    assert average_precision(distances, relevant, 2)[0] == pytest.approx(1 / 2)


def test_it_does_not_depend_on_the_order_of_storing_or_the_scale() -> None:
    rng = np.random.default_rng(0)
    distances, relevant = rng.integers(0, 5, (20, 300)), rng.random((20, 300)) < 0.1
    order = rng.permutation(300)
    expected = average_precision(distances, relevant, 50)
    np.testing.assert_allclose(
        average_precision(distances[:, order], relevant[:, order], 50), expected
    )
    far = distances.astype(np.int64) * 10**12 - 7
    np.testing.assert_allclose(average_precision(far, relevant, 50), expected)


def test_all_tied_is_what_chance_gives() -> None:
    relevant = np.arange(200)[None] < 20
    found = average_precision(np.zeros((1, 200), np.uint16), relevant)[0]
    rng, flat = np.random.default_rng(1), np.arange(200)[None]
    drawn = [average_precision(flat, rng.permutation(relevant[0])[None])[0] for _ in range(3000)]
    assert found == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / 3000**0.5)


def test_codes_in_chunks_are_what_distances_give(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    query, codes = (rng.integers(0, 256, (n, 2), dtype=np.uint8) for n in (23, 60))
    query_group, group = rng.integers(0, 9, 23), rng.integers(0, 8, 60)
    bits = np.unpackbits(query, axis=1)[:, None] != np.unpackbits(codes, axis=1)[None]
    relevant = query_group[:, None] == group[None]
    wanted = [np.nanmean(average_precision(bits.sum(2), relevant, k)) for k in (None, 10)]
    assert (query_group == 8).any()  # left out of the mean
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 200)
    found = mean_average_precision(query, codes, query_group, group, (None, 10))
    np.testing.assert_allclose(found, wanted)


def test_what_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="distances are float64, expected integers"):
        average_precision(np.zeros((1, 2)), np.ones((1, 2), bool))
    with pytest.raises(ValueError, match=r"distances \(1, 2\) and relevant \(1, 3\) differ"):
        average_precision(np.zeros((1, 2), int), np.ones((1, 3), bool))
    with pytest.raises(ValueError, match="cut-off is 0"):
        average_precision(np.zeros((1, 2), int), np.ones((1, 2), bool), 0)
    codes = np.zeros((2, 2), np.uint8)
    with pytest.raises(ValueError, match="none of 2 queries has a relevant code"):
        mean_average_precision(codes, codes, np.array([0, 1]), np.array([2, 3]))
    with pytest.raises(ValueError, match="1 groups for 2 codes of the database"):
        mean_average_precision(codes, codes, np.array([0, 1]), np.array([2]))


def test_nothing_is_empty() -> None:
    assert average_precision(np.zeros((0, 3), int), np.zeros((0, 3), bool)).shape == (0,)
    assert np.isnan(average_precision(np.zeros((2, 0), int), np.zeros((2, 0), bool))).all()
