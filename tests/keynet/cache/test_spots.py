from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache import spots as spots_module
from keynet.cache.spots import Spot, Spots
from keynet.types import Key


def at(cosine: float, axis: int = 1) -> np.ndarray:
    """A unit vector at a cosine from the first axis."""
    vector = np.zeros(8, np.float32)
    vector[0], vector[axis] = cosine, np.sqrt(1 - cosine**2)
    return vector


def test_the_floor_holds_inside_and_in_its_place_alone() -> None:
    spots = Spots([Spot("a", at(1.0), 0.9)])
    assert spots.floor("a", at(0.95)) == spots.floor("a", at(0.901)) == 0.9
    assert spots.floor("a", at(0.89)) == spots.floor("b", at(1.0)) == -np.inf
    spots.add(Spot("a", at(0.99), 0.97))
    assert spots.floor("a", at(0.98)) == 0.97 and spots.floor("a", at(0.91)) == 0.9
    assert len(spots) == 2


def test_a_request_is_in_its_own_neighbourhood(key: Callable[..., Key]) -> None:
    for number in range(300):  # the norm of some comes to less than 1
        vector = key(number).vector
        assert Spots([Spot("a", vector, 1.0)]).floor("a", vector) == 1.0


def test_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spots_module, "MOST", 3)
    spots = Spots(Spot(place, at(1.0), n / 10) for n, place in enumerate("abaca"))
    assert len(spots) == 3
    assert [spots.floor(place, at(1.0)) for place in "abc"] == [0.4, -np.inf, 0.3]
    spots = Spots(Spot(place, at(1.0), n / 10) for n, place in enumerate("baac"))  # b goes whole
    assert [spots.floor(place, at(1.0)) for place in "abc"] == [0.2, -np.inf, 0.3]
    assert set(spots._places) == {"a", "c"}
    spots.add(Spot("d", at(1.0), 0.4))
    assert spots.floor("a", at(1.0)) == 0.2


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 7), st.floats(-1, 1)), max_size=20),
    st.floats(-1, 1),
)
def test_it_does_what_a_list_would(known: list[tuple[str, int, float]], cosine: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spots_module, "MOST", 9)
        spots = Spots(Spot(place, at(0.5, axis), s) for place, axis, s in known)
    known, asked = known[-9:], at(cosine)
    inside = [s for place, axis, s in known if place == "a" and at(0.5, axis) @ asked >= s - 1e-6]
    assert spots.floor("a", asked) == max(inside, default=-np.inf)
