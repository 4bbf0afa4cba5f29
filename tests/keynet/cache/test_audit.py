from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache.audit import AuditAlarm

BUDGETS = st.sampled_from([0.001, 0.01, 0.05, 0.3, 0.7])
OUTCOMES = st.lists(st.booleans(), max_size=60)


def first_alarm(wrong: np.ndarray, budget: float, delta: float = 0.05) -> int | None:
    """After how many audits the alarm is raised; ``wrong`` says which hits were false."""
    alarm = AuditAlarm(budget, delta)
    return next((n + 1 for n, one in enumerate(wrong) if alarm.add(not one)), None)


def test_a_false_alarm_is_ever_raised_in_at_most_delta_of_the_runs() -> None:
    rng = np.random.default_rng(0)
    runs, delta = 300, 0.2
    raised = sum(first_alarm(rng.random(1000) < 0.1, 0.1, delta) is not None for _ in range(runs))
    # At exactly delta, more than this is seen in 1 of 1,000 experiments.
    assert raised <= delta * runs + 3.1 * math.sqrt(delta * (1 - delta) * runs)
    assert raised > 0.02 * runs  # an alarm that is never raised would pass, too


@settings(max_examples=80, deadline=None)
@given(BUDGETS, OUTCOMES, st.floats(0, 1))
def test_no_audit_is_expected_to_add_evidence_within_the_budget(
    budget: float, outcomes: list[bool], share: float
) -> None:
    # The law behind it: whatever came before, and at any rate up to the budget.
    def after(*more: bool) -> float:
        alarm = AuditAlarm(budget)
        for equivalent in (*outcomes, *more):
            alarm.add(equivalent)
        return alarm.log_evidence()

    rate, now = budget * share, after()
    grown = rate * math.exp(after(False) - now) + (1 - rate) * math.exp(after(True) - now)
    assert grown <= 1 + 1e-9


def test_what_is_bet_does_not_depend_on_the_outcome() -> None:
    alarm = AuditAlarm(0.1)
    for equivalent in (True, False, False, True):
        alarm.add(equivalent)
    gains = []
    for equivalent in (True, False):
        again = AuditAlarm(0.1)
        again.restore(alarm.state())
        again.add(equivalent)
        gains.append(math.exp(again.log_evidence() - alarm.log_evidence()))
    # A fair bet at the budget.
    assert 0.9 * gains[0] + 0.1 * gains[1] == pytest.approx(1.0)
    assert gains[0] < 1 < gains[1]


@pytest.mark.parametrize(("budget", "most"), [(0.01, 600), (0.05, 120)])
def test_three_times_the_budget_is_noticed(budget: float, most: int) -> None:
    rng = np.random.default_rng(1)
    found = [first_alarm(rng.random(6000) < 3 * budget, budget) for _ in range(101)]
    assert None not in found
    assert np.median([n for n in found if n is not None]) < most


def test_a_change_after_a_long_good_time_is_noticed_as_soon() -> None:
    # Bets at fixed stakes from the first audit on would take 1,751 audits here (median).
    rng = np.random.default_rng(2)
    delays = []
    for _ in range(25):
        good = rng.random(6000) < 0.004
        at = first_alarm(np.concatenate([good, rng.random(3000) < 0.05]), 0.01)
        assert at is not None and at > len(good)
        delays.append(at - len(good))
    assert np.median(delays) < 300


def test_a_great_change_is_noticed_at_once() -> None:
    # With the long memory alone it takes 41 audits (median).
    rng = np.random.default_rng(3)
    delays = []
    for _ in range(51):
        good = rng.random(350) < 0.004
        at = first_alarm(np.concatenate([good, rng.random(500) < 0.16]), 0.01)
        assert at is not None
        delays.append(at - len(good))
    assert np.median(delays) < 35


@settings(max_examples=40, deadline=None)
@given(BUDGETS, OUTCOMES, OUTCOMES)
def test_a_restored_alarm_goes_on(budget: float, first: list[bool], then: list[bool]) -> None:
    alarm, again = AuditAlarm(budget), AuditAlarm(budget)
    for equivalent in first:
        alarm.add(equivalent)
    again.restore(json.loads(json.dumps(alarm.state())))
    for equivalent in then:
        assert again.add(equivalent) == alarm.add(equivalent)
    assert again.state() == alarm.state()


@pytest.mark.parametrize("budget", [0.01, 0.3, 0.8])
def test_a_good_audit_after_any_number_of_bad_ones_costs_half_of_the_stake(budget: float) -> None:
    alarm = AuditAlarm(budget)
    for _ in range(3000):
        alarm.add(False)
    before = alarm.log_evidence()
    alarm.add(True)
    assert alarm.log_evidence() - before == pytest.approx(math.log(0.5))


def test_a_stake_that_is_lost_leaves_the_other() -> None:
    alarm = AuditAlarm(0.01)
    alarm.restore({"bets": [[0.0, 0.0, -2000.0], [0.0, 0.0, 0.0]]})
    assert alarm.log_evidence() == pytest.approx(math.log(0.5))


def test_false_hits_alone_raise_it_and_do_not_overflow() -> None:
    alarm = AuditAlarm(0.001)
    assert [alarm.add(False) for _ in range(10_000)][-1]
    assert math.isfinite(alarm.log_evidence())
    assert all(not AuditAlarm(0.001).add(True) for _ in range(3))


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, float("nan")])
@pytest.mark.parametrize("name", ["budget", "delta"])
def test_what_is_no_share_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; give a share between 0 and 1"):
        AuditAlarm(**{"budget": 0.01, name: value})
