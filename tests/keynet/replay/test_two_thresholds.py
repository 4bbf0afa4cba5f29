from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.replay.closed_loop import replay
from keynet.replay.two_thresholds import (
    PairedSimilarities,
    count_two_thresholds,
    replay_two_thresholds,
)


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


RNG = np.random.default_rng(0)
GROUP = RNG.integers(12, size=60)
IMAGE = unit(RNG.standard_normal((12, 16))[GROUP] + 0.6 * RNG.standard_normal((60, 16)))
TEXT = unit(RNG.standard_normal((5, 8)))[RNG.integers(5, size=60)]
PAIRS = PairedSimilarities.of(IMAGE, TEXT)


def by_hand(order: list[int], a: float, b: float) -> list[int]:
    stored: list[int] = []
    served = []
    for request in order:
        best, value = -1, -np.inf
        for other in stored:
            text = float(PAIRS.text[PAIRS.text_of[request], PAIRS.text_of[other]])
            image = float(PAIRS.image[request, other])
            if image >= a and text >= b and np.float32(image) + np.float32(text) > value:
                best, value = other, np.float32(image) + np.float32(text)
        served.append(best)
        if best < 0:
            stored.append(request)
    return served


@settings(max_examples=40, deadline=None)
@given(
    order=st.lists(st.integers(0, 59), max_size=50),
    a=st.floats(-1, 1, width=16),
    b=st.floats(-1, 1, width=16),
)
def test_it_serves_what_a_search_through_all_entries_finds(
    order: list[int], a: float, b: float
) -> None:
    visits = np.array(order, np.int64)
    found = replay_two_thresholds(PAIRS, GROUP, visits, a, b)
    assert found.served.tolist() == by_hand(order, a, b)
    counts = count_two_thresholds(PAIRS, GROUP, GROUP, visits, a, b)
    assert counts.served == (found.outcome > 0).sum()
    assert counts.false_hits == (found.outcome == 2).sum()


def test_of_equal_texts_the_picture_alone_decides() -> None:
    pairs = PairedSimilarities.of(IMAGE, np.tile(TEXT[:1], (60, 1)))
    order = RNG.integers(60, size=200)
    found = replay_two_thresholds(pairs, GROUP, order, 0.6, 1.0)
    exact = replay(IMAGE, GROUP, order, 0.6)
    assert (found.served == exact.served).all() and (found.served >= 0).any()


def test_rows_must_pair() -> None:
    with pytest.raises(ValueError, match="59 pictures and 60 texts"):
        PairedSimilarities.of(IMAGE[:59], TEXT)


def test_of_equally_near_entries_the_earliest_is_served() -> None:
    image = unit(np.array([[1.0, 0], [0, 1], [1, 1]]))
    pairs = PairedSimilarities.of(image, np.ones((3, 1), np.float32))
    for order in ([0, 1, 2], [1, 0, 2]):
        found = replay_two_thresholds(pairs, np.arange(3), np.array(order), 0.5, 1.0)
        assert found.served.tolist() == [-1, -1, order[0]]
