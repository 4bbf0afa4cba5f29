from __future__ import annotations

import numpy as np
import pytest

from keynet.replay.counting import semantic_counting


def test_a_resource_split_over_seven_keys() -> None:
    found = semantic_counting(np.zeros(14, int), np.arange(14) % 7)
    assert found == (1, 14, 7.0, pytest.approx(1 - 1 / 7), 0.0)


def test_counting_resources_themselves_is_right() -> None:
    resource = np.random.default_rng(0).integers(9, size=100)
    found = semantic_counting(resource, resource + 5)
    assert found == (9, 100, 1.0, 0.0, 0.0)


def test_a_key_of_several_resources_is_told() -> None:
    found = semantic_counting(np.array([0, 0, 0, 1]), np.array([5, 5, 6, 5]))
    assert found.mixed == 0.75 and found.keys == 1.5 and found.underrated == 0.25


def test_the_most_visited_alone() -> None:
    found = semantic_counting(np.array([0, 0, 1]), np.array([0, 1, 2]), most=1)
    assert found[:3] == (1, 2, 2.0)
    with pytest.raises(ValueError, match="2 keys for 3 visits"):
        semantic_counting(np.arange(3), np.arange(2))
