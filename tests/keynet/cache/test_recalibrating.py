from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from keynet.cache.acceptance import FixedThreshold
from keynet.cache.recalibrating import RECENT, Recalibrating
from keynet.types import Key, KeySpace

Make = Callable[..., Key]
BOTH = "image+text"
BUDGET = 0.01


def rule_of(threshold: float | None = 0.8) -> Recalibrating:
    return Recalibrating(FixedThreshold(threshold), BUDGET)


def test_without_an_alarm_it_is_the_other_rule(key: Make) -> None:
    rule = rule_of()
    for _ in range(3000):
        rule.audited(key(1), BOTH, 0.85, True)
    assert rule.threshold(key(1), BOTH) == 0.8
    assert set(rule.alarms().values()) == {0}
    assert rule_of(None).threshold(key(1), BOTH) is None


def test_after_an_alarm_audits_give_the_loosest_threshold_that_they_uphold(key: Make) -> None:
    # Right from .9 on, wrong below for one hit in three.
    rng = np.random.default_rng(0)
    rule = rule_of()
    while not sum(rule.alarms().values()):
        # Alarmed with many audits behind it: every tenth only is below.
        below = rng.random() < 0.07
        similarity = rng.uniform(0.8, 0.9) if below else rng.uniform(0.9, 1)
        rule.audited(key(1), BOTH, similarity, not (below and rng.random() < 0.33))
    found = rule.threshold(key(1), BOTH)
    assert found is not None and 0.8 < found < 0.91


def test_with_few_audits_it_is_above_the_most_similar_false_hit(key: Make) -> None:
    rule = rule_of()
    wrong = [0.83, 0.91, 0.87] * 10
    told = []
    for similarity in wrong:
        rule.audited(key(1), BOTH, similarity, False)
        told.append(similarity)
        if sum(rule.alarms().values()):
            break
    assert 1 < len(told) < 30  # at 100 % wrong, it does not take long
    assert rule.threshold(key(1), BOTH) == math.nextafter(max(told), 2)


def test_it_tightens_until_nothing_is_served(key: Make) -> None:
    rule = rule_of()
    last = 0.8
    for similarity in (0.85, 0.9, 0.95, 1.0):
        alarms = sum(rule.alarms().values())
        while sum(rule.alarms().values()) == alarms:
            rule.audited(key(1), BOTH, similarity, False)
        found = rule.threshold(key(1), BOTH)
        if similarity < 1:
            assert found is not None and found > last
            last = found
    assert found is None  # the very same vector was wrong
    rule.reset()
    assert rule.threshold(key(1), BOTH) == 0.8


def test_above_a_false_hit_next_to_1_the_very_same_vector_is_served(key: Make) -> None:
    rule = rule_of()
    while not sum(rule.alarms().values()):
        rule.audited(key(1), BOTH, math.nextafter(1, 0), False)
    assert rule.threshold(key(1), BOTH) == 1.0


def test_after_an_alarm_audits_start_anew(key: Make) -> None:
    rule = rule_of()
    while not sum(rule.alarms().values()):
        rule.audited(key(1), BOTH, 0.9, False)
    assert not rule.state()["ledgers"][f"f00d {BOTH}"]["recent"]
    for _ in range(200):
        rule.audited(key(1), BOTH, 0.95, True)
    assert sum(rule.alarms().values()) == 1
    while sum(rule.alarms().values()) == 1:
        rule.audited(key(1), BOTH, 0.93, False)
    assert rule.threshold(key(1), BOTH) == math.nextafter(0.93, 2)


def test_the_stricter_one_holds(key: Make) -> None:
    rule = rule_of(0.97)
    while not sum(rule.alarms().values()):
        rule.audited(key(1), BOTH, 0.9, False)
    assert rule.threshold(key(1), BOTH) == 0.97


def test_key_spaces_and_modalities_have_alarms_of_their_own(space: KeySpace, key: Make) -> None:
    rule = rule_of()
    other = key(1, 0, replace(space, fingerprint="beef"))
    while not sum(rule.alarms().values()):
        rule.audited(key(1), BOTH, 0.9, False)
    assert rule.threshold(key(2), BOTH) != 0.8
    assert rule.threshold(other, BOTH) == rule.threshold(key(1), "text") == 0.8


def test_a_restored_rule_goes_on(key: Make) -> None:
    rng = np.random.default_rng(4)
    rule, again = rule_of(), rule_of()

    def audit(one: Recalibrating, similarity: float, equivalent: bool) -> None:
        one.audited(key(1), BOTH, similarity, equivalent)

    def draw(count: int) -> list[tuple[float, bool]]:
        return [(float(rng.uniform(0.8, 1)), bool(rng.random() > 0.03)) for _ in range(count)]

    for similarity, equivalent in draw(900):
        audit(rule, similarity, equivalent)
    again.restore(json.loads(json.dumps(rule.state())))
    for similarity, equivalent in draw(900):
        audit(rule, similarity, equivalent)
        audit(again, similarity, equivalent)
        assert again.threshold(key(1), BOTH) == rule.threshold(key(1), BOTH)
    assert again.state() == rule.state()
    assert sum(rule.alarms().values()) >= 2
    assert len(next(iter(rule.state()["ledgers"].values()))["recent"]) <= RECENT


def test_a_budget_that_is_no_share_is_refused_when_the_rule_is_made() -> None:
    with pytest.raises(ValueError, match="budget is 1; give a share"):
        Recalibrating(FixedThreshold(0.8), 1)
