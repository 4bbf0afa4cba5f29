"""What holds for every policy, by its name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache.policies.catalog import POLICIES
from keynet.cache.policies.policy import Policy, PolicyError, Stored

every_policy = pytest.mark.parametrize("name", POLICIES)
Make = Callable[..., Stored]
steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "ask", "remove", "fail"]),
        st.integers(0, 14),
        st.floats(-1, 1),
    ),
    max_size=120,
)


def drained(policy: Policy) -> list[int]:
    """All that a policy holds, in the order in which it lets go."""
    found = []
    while True:
        try:
            found.append(policy.victim())
        except LookupError:
            return found


def run(policy: Policy, capacity: int, todo: list[tuple[str, int, float]], make: Make) -> list[int]:
    """Do what a cache does, see that the policy stays sound, and return what went, in order."""
    held: dict[int, Stored] = {}
    gone = []
    for number, (what, pick, similarity) in enumerate(todo):
        at = next((e for e, s in held.items() if s.identity == f"object {pick}"), None)
        if what == "remove":
            if held:
                entry = sorted(held)[pick % len(held)]
                policy.on_remove(entry)
                del held[entry]
        elif at is not None:
            policy.on_hit(at, similarity)
        else:
            incoming = make(number, pick, 1 + pick % 4, f"scope {pick % 2}")
            policy.on_miss(incoming)
            back = []
            while sum(s.size for s in held.values()) + incoming.size > capacity:
                victim = policy.victim()
                assert victim in held
                back.append(held.pop(victim))
                gone.append(victim)
            if what == "fail":
                for stored in back:
                    policy.on_insert(stored)
                    held[stored.entry] = stored
            else:
                policy.on_insert(incoming)
                held[number] = incoming
    rest = drained(policy)
    assert sorted(rest) == sorted(held)
    return gone + rest


@every_policy
@settings(max_examples=15, deadline=None)
@given(todo=steps, capacity=st.integers(4, 24))
def test_holds_what_came_less_what_went_and_repeats_itself(
    name: str, todo: list[tuple[str, int, float]], capacity: int, stored: Make
) -> None:
    first = run(POLICIES[name](capacity, 3), capacity, todo, stored)
    again = run(POLICIES[name](capacity, 3), capacity, todo, stored)
    if name != "heat_graph":  # its clock is the wall's
        assert first == again


@every_policy
def test_is_sound_at_length(name: str, stored: Make) -> None:
    rng = np.random.default_rng(0)
    kinds = rng.choice(["ask", "remove", "fail"], 3000, p=[0.9, 0.07, 0.03]).tolist()
    picks = (rng.zipf(1.3, 3000) % 200).tolist()
    todo = list(zip(kinds, picks, rng.uniform(0.5, 1, 3000).tolist(), strict=True))
    gone = run(POLICIES[name](60), 60, todo, stored)
    assert len(gone) > 300


@every_policy
def test_empty_holds_nothing(name: str, stored: Make) -> None:
    policy = POLICIES[name](4)
    with pytest.raises(LookupError, match="holds no entry"):
        policy.victim()
    policy.on_miss(stored(0, 0))
    policy.on_insert(stored(0, 0))
    policy.on_remove(0)
    with pytest.raises(LookupError, match="holds no entry"):
        policy.victim()


@every_policy
@pytest.mark.parametrize("capacity", [0, -1, 2.5, True, None, "8"])
def test_a_capacity_that_is_none_is_refused(name: str, capacity: object) -> None:
    expected = f"capacity is {capacity!r}; expected a whole number, 1 or more"
    with pytest.raises(PolicyError) as error:
        POLICIES[name](capacity)  # type: ignore[arg-type]
    assert str(error.value) == expected


@every_policy
def test_room_for_one_is_room_for_one(name: str, stored: Make) -> None:
    policy = POLICIES[name](1)
    policy.on_insert(stored(0, 0))
    for number in range(1, 30):
        incoming = stored(number, number % 3)
        policy.on_miss(incoming)
        assert policy.victim() == number - 1
        policy.on_insert(incoming)


@every_policy
def test_what_is_popular_stays(name: str, hits: Callable, zipf: Callable) -> None:
    if name in ("ssrp", "heat_graph"):
        pytest.skip("goes by similarity; a plain trace has none")
    trace = zipf(3000, 60)
    found = hits(POLICIES[name](40), 40, trace)
    chance = 40 / 60  # that an object is held, by a draw that knows nothing of popularity
    assert found[1000:].mean() > chance + 0.1
    assert not found[np.unique(trace, return_index=True)[1]].any()


@pytest.mark.parametrize("name", ["ssrp", "heat_graph"])
def test_a_plain_trace_has_no_meaning_to_go_by(name: str, hits: Callable) -> None:
    with pytest.raises(PolicyError, match=r"entry 0 has no vector.*choose another policy"):
        hits(POLICIES[name](2), 2, [1, 2, 3])


@pytest.mark.slow
def test_order_does_not_hang_on_the_hash_seed() -> None:
    script = """
import numpy as np
from keynet.cache.policies.catalog import POLICIES
from keynet.cache.policies.policy import Stored
rng = np.random.default_rng(0)
asked = (rng.zipf(1.2, 2000) % 100).tolist()
rows = rng.standard_normal((100, 8)).astype(np.float32)
rows /= np.linalg.norm(rows, axis=1, keepdims=True)
for name in POLICIES:
    policy, held = POLICIES[name](20), {}
    if name == "heat_graph":
        policy._clock = lambda: 0.0
    for number, what in enumerate(asked):
        if what in held:
            policy.on_hit(held[what])
            continue
        incoming = Stored(number, f"object {what}", 1, 1.0, None, rows[what])
        policy.on_miss(incoming)
        if len(held) == 20:
            gone = policy.victim()
            print(name, gone)
            held = {w: e for w, e in held.items() if e != gone}
        policy.on_insert(incoming)
        held[what] = number
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1] and found[0].count("\n") > 100 * len(POLICIES)
