from __future__ import annotations

import numpy as np
import pytest

from keynet.replay.orders import zipf_order

GROUP = np.repeat(np.arange(50), 40)


def test_every_visit_is_a_new_request_and_the_seed_decides() -> None:
    order = zipf_order(GROUP, 1500, 1.0, seed=3)
    assert len(np.unique(order)) == 1500
    assert (order == zipf_order(GROUP, 1500, 1.0, seed=3)).all()
    assert (order != zipf_order(GROUP, 1500, 1.0, seed=4)).any()


def test_the_whole_pool_can_be_drawn_but_no_more() -> None:
    assert sorted(zipf_order(GROUP, 2000, 1.0, seed=0).tolist()) == list(range(2000))
    with pytest.raises(ValueError, match="2001 new requests are to be drawn from 2000"):
        zipf_order(GROUP, 2001, 1.0, seed=0)


def test_popularity_follows_the_law() -> None:
    group = np.repeat(np.arange(20), 5000)
    drawn = np.bincount(group[zipf_order(group, 8000, 1.0, seed=1)])
    expected = 8000 / np.arange(1, 21) / (1 / np.arange(1, 21)).sum()
    assert np.abs(np.sort(drawn)[::-1] / expected - 1).max() < 0.15
    even = np.bincount(group[zipf_order(group, 8000, 0.0, seed=1)])
    assert np.abs(even / 400 - 1).max() < 0.2


def test_verbatim_share_repeats_earlier_visits() -> None:
    order = zipf_order(GROUP, 1900, 1.0, seed=2, verbatim=0.3)
    repeat = np.ones(1900, dtype=bool)
    repeat[np.unique(order, return_index=True)[1]] = False
    assert abs(repeat.mean() - 0.3) < 0.04
    with pytest.raises(ValueError, match="verbatim is 1"):
        zipf_order(GROUP, 10, 1.0, seed=2, verbatim=1.0)
