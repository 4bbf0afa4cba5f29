from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from keynet.cache.policies.heat_graph import HeatGraph
from keynet.cache.policies.policy import PolicyError, Stored


def heats(policy: HeatGraph) -> dict[int, float]:
    """What the heats are now."""
    passed = policy._clock() - policy._start
    cooled = np.log(policy._gamma) * passed / 5
    return {entry: float(np.exp(policy._heat[at] + cooled)) for entry, at in policy._slot.items()}


def at(entry: int, cosine: float, scope: str = "") -> Stored:
    """An entry so similar to one at 1."""
    return Stored(
        entry, entry, vector=np.array([cosine, np.sqrt(1 - cosine**2)], np.float32), scope=scope
    )


def test_a_use_warms_its_entry_and_its_neighbours(new_clock: Callable) -> None:
    policy = HeatGraph(9, clock=new_clock())
    policy.on_insert(at(0, 1.0))
    policy.on_insert(at(1, 0.8))
    policy.on_insert(at(2, 0.0))
    policy.on_insert(at(3, 1.0, scope="other"))
    edge = 0.8**0.7
    assert heats(policy) == pytest.approx({0: 1 + edge, 1: 1.0, 2: 1.0, 3: 1.0})  # 1-2: .6 < .65
    policy.on_hit(0, 0.9)
    used = 0.9**0.7
    warm = {0: 1 + edge + used, 1: 1 + used * edge, 2: 1.0, 3: 1.0}
    assert heats(policy) == pytest.approx(warm)
    policy.on_hit(2, 0.6)  # below alpha
    assert heats(policy) == pytest.approx(warm)
    policy.on_hit(2, 0.65)  # at alpha
    assert heats(policy) == pytest.approx(warm | {2: 1 + 0.65**0.7})


def test_an_exponent_of_0_makes_all_edges_equal() -> None:
    policy = HeatGraph(9, beta=0, gamma=1)
    for entry in (at(0, 1.0), at(1, 0.8)):
        policy.on_insert(entry)
    assert heats(policy) == pytest.approx({0: 2.0, 1: 1.0})


def test_the_coldest_goes_and_of_equals_the_first(new_clock: Callable) -> None:
    policy = HeatGraph(9, clock=new_clock())
    for entry in (at(5, 1.0), at(6, 0.0), at(7, -1.0)):
        policy.on_insert(entry)
    policy.on_hit(5)
    assert [policy.victim() for _ in range(3)] == [6, 7, 5]


def test_heat_falls_to_gamma_in_five_seconds(new_clock: Callable) -> None:
    clock = new_clock()
    policy = HeatGraph(9, clock=clock)
    policy.on_insert(at(0, 1.0))
    clock.now += 5
    assert heats(policy) == pytest.approx({0: 0.88})
    policy.on_insert(at(1, -1.0))
    clock.now += 10
    assert heats(policy) == pytest.approx({0: 0.88**3, 1: 0.88**2})
    assert policy.victim() == 0


def test_the_order_outlasts_idle_years_and_a_clock_that_goes_back(new_clock: Callable) -> None:
    clock = new_clock()
    policy = HeatGraph(9, clock=clock)
    policy.on_insert(at(0, 1.0))
    policy.on_insert(at(1, 0.0))
    policy.on_hit(0)
    clock.now += 1e8
    policy.on_insert(at(2, -1.0))
    clock.now = 0.0
    policy.on_insert(at(3, 1.0, scope="other"))
    assert [policy.victim() for _ in range(2)] == [1, 0]
    assert policy.victim() == 2


def test_is_the_model_written_out(new_clock: Callable, stored: Callable) -> None:
    rng = np.random.default_rng(0)
    clock = new_clock()
    policy = HeatGraph(150, clock=clock, alpha=0.3, gamma=0.5, beta=2.0)
    held: dict[int, Stored] = {}
    heat: dict[int, float] = {}

    def warm(entry: int, amount: float) -> None:
        for other, one in held.items():
            cosine = float(one.vector @ held[entry].vector)
            if one.scope == held[entry].scope and (other == entry or cosine >= 0.3):
                heat[other] += amount * (1.0 if other == entry else min(1.0, cosine) ** 2)

    for number in range(600):
        passed = float(rng.uniform(0, 2))
        clock.now += passed
        heat = {entry: value * 0.5 ** (passed / 5) for entry, value in heat.items()}
        if held and rng.random() < 0.4:
            entry, similarity = int(rng.choice(sorted(held))), float(rng.uniform(0.2, 1))
            policy.on_hit(entry, similarity)
            warm(entry, similarity**2 if similarity >= 0.3 else 0.0)
            continue
        if len(held) == 150:  # more than the slots that it starts with
            gone = policy.victim()
            assert heat[gone] == pytest.approx(min(heat.values()), rel=1e-5)
            del held[gone], heat[gone]
        held[number], heat[number] = stored(number, number, scope=str(number % 2)), 0.0
        policy.on_insert(held[number])
        warm(number, 1.0)
    assert heats(policy) == pytest.approx(heat, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"alpha": 1.2}, "alpha is 1.2; expected a number, 0 to 1"),
        ({"gamma": 0}, "gamma is 0; expected more than 0, or all heat is gone at once"),
        ({"gamma": -0.5}, "gamma is -0.5; expected a number, 0 to 1"),
        ({"beta": -1}, "beta is -1; expected a number, 0 or more"),
        ({"beta": float("inf")}, "beta is inf; expected a number, 0 or more"),
        ({"beta": float("nan")}, "beta is nan; expected a number, 0 or more"),
    ],
)
def test_a_parameter_that_is_none_is_refused(settings: dict[str, float], line: str) -> None:
    with pytest.raises(PolicyError) as error:
        HeatGraph(4, **settings)
    assert str(error.value) == line
