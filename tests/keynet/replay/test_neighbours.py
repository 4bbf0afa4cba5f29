from __future__ import annotations

import numpy as np
import pytest

from keynet.replay.neighbours import STEP, Neighbours, check_keys, similarities


def unit(n: int, dim: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(n, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("bits", [64, 100, 128, 256])
def test_similarities_of_codes_tie_whatever_the_order_of_additions(bits: int) -> None:
    signs = np.where(unit(200, bits) >= 0, 1, -1)
    keys = (signs / np.sqrt(bits)).astype(np.float32)
    exact = np.rint((signs @ signs.T) / bits / STEP) * STEP
    assert (similarities(keys, keys) == exact.astype(np.float32)).all()
    assert (similarities(keys[3:4], keys)[0] == exact[3].astype(np.float32)).all()


def test_equal_keys_share_a_node_within_a_scope_only() -> None:
    keys = unit(2, 8)[[0, 0, 1, 0]]
    assert Neighbours.of(keys, np.array(["a", "a", "a", "b"])).node == [0, 0, 1, 2]


def test_lists_are_the_nearest_and_rows_are_complete() -> None:
    keys = unit(60, 8)
    found = Neighbours.of(keys, length=10)
    sims = similarities(keys, keys)
    for node in range(60):
        assert found.near_similarity[node] == np.sort(sims[node])[::-1][:10].tolist()
        assert found.truncated[node]
        ids, values = found.row(node, 0.2)
        assert np.array_equal(ids, np.flatnonzero(sims[node] >= 0.2))
        assert np.array_equal(values, sims[node][ids])
    assert not any(Neighbours.of(keys, length=60).truncated)


def test_candidates_descend_and_reach_from_duplicates_to_the_loosest() -> None:
    keys = unit(100, 8)
    keys[1] = keys[0]
    group = np.arange(100)
    found = Neighbours.of(keys).candidates(group)
    assert (np.diff(found) < 0).all()
    assert found[0] == 1.0
    assert 20 <= len(found) <= 60
    only = Neighbours.of(keys).candidates(group, np.arange(2, 100))
    assert only[0] < 1.0
    assert len(Neighbours.of(keys).candidates(group, np.zeros(0, dtype=np.int64))) == 0


def test_bad_keys_are_named() -> None:
    keys = unit(5, 4)
    keys[3] = np.nan
    with pytest.raises(ValueError, match="key 3 has norm nan"):
        check_keys(keys)
    with pytest.raises(ValueError, match="shape"):
        check_keys(np.zeros((0, 4), dtype=np.float32))
    with pytest.raises(ValueError, match="2 scopes for 5 keys"):
        Neighbours.of(unit(5, 4), np.arange(2))
