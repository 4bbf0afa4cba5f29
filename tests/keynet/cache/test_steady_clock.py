from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from keynet.cache.steady_clock import SteadyClock


def test_it_is_the_clock_while_that_goes_on(new_clock: Callable) -> None:
    clock = new_clock()
    steady = SteadyClock(clock)
    clock.now += 5
    assert steady() == 1005.0 == steady.reached


def test_it_goes_on_when_the_clock_is_set_back(new_clock: Callable) -> None:
    clock = new_clock()
    steady = SteadyClock(clock)
    clock.now -= 900
    assert steady() == 1000.0
    clock.now += 30
    assert steady() == 1030.0
    clock.now += 2000  # set right again, and ahead: that counts as time
    assert steady() == 3030.0


def test_it_goes_on_from_what_was_reached(new_clock: Callable) -> None:
    clock = new_clock()
    behind, ahead = SteadyClock(clock, 5000.0), SteadyClock(clock, 10.0)
    assert (behind.reached, ahead.reached) == (5000.0, 1000.0)
    clock.now += 1
    assert (behind(), ahead()) == (5001.0, 1001.0)


@given(st.lists(st.floats(-1e9, 1e9), max_size=30))
def test_it_never_goes_back(new_clock: Callable, times: list[float]) -> None:
    clock = new_clock()
    steady = SteadyClock(clock)
    found = []
    for clock.now in times:
        found.append(steady())
    assert found == sorted(found) and all(time >= 1000.0 for time in found)
    assert all(told >= time for told, time in zip(found, times, strict=True))
