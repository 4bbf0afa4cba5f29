from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from keynet.cache.acceptance import (
    AcceptanceError,
    FixedThreshold,
    PerKeySpace,
    PerModalities,
    PerScope,
)
from keynet.cache.calibrated import CalibratedThresholds
from keynet.export.manifest import StoredThreshold
from keynet.types import Key, KeySpace

Make = Callable[..., Key]
BOTH = "image+text"


def threshold(value: float | None = 0.9, **changes: object) -> StoredThreshold:
    found = StoredThreshold(
        "closed_loop", BOTH, None, value, 0.01, None, "toy/calibration", 1000, "f00d"
    )
    return replace(found, **changes)  # type: ignore[arg-type]


@dataclass
class Export:
    space: KeySpace
    thresholds: tuple[StoredThreshold, ...] = field(default=())


MANY = (
    threshold(0.9),
    threshold(0.8, budget=0.05),
    threshold(0.7, kind="fixed_store", confidence=0.95),
    threshold(0.95, modalities="image"),
    threshold(None, modalities="text"),
    threshold(0.6, bits=64),
)


def test_a_threshold_is_taken_by_kind_budget_and_modalities(space: KeySpace, key: Make) -> None:
    export = Export(space, MANY)
    rule = CalibratedThresholds(export, 0.01)
    assert rule.threshold(key(1), BOTH) == 0.9
    assert rule.threshold(key(1), "image") == 0.95
    assert rule.threshold(key(1), "text") is None  # calibrated, and nothing keeps the budget
    assert CalibratedThresholds(export, 0.05).threshold(key(1), BOTH) == 0.8
    assert CalibratedThresholds(export, 0.01, "fixed_store").threshold(key(1), BOTH) == 0.7


def test_two_key_spaces_have_thresholds_of_their_own(space: KeySpace, key: Make) -> None:
    other = replace(space, fingerprint="beef")
    exports = [Export(space, MANY), Export(other, (threshold(0.5, key_space="beef"),))]
    rule = CalibratedThresholds(exports, 0.01)
    assert rule.threshold(key(1), BOTH) == 0.9
    assert rule.threshold(key(1, 0, other), BOTH) == 0.5
    with pytest.raises(AcceptanceError, match="of key space cafe, the thresholds are of f00d, bee"):
        rule.threshold(key(1, 0, replace(space, fingerprint="cafe")), BOTH)


def test_a_budget_of_0_serves_nothing_and_needs_no_threshold(space: KeySpace, key: Make) -> None:
    rule = CalibratedThresholds(Export(space), 0)
    assert rule.threshold(key(1), BOTH) is None
    assert rule.threshold(key(1), "text") is None


@pytest.mark.parametrize("budget", [1, 1.0, -0.01, 2, float("nan"), True, "0.01", None])
def test_a_budget_that_is_no_share_is_refused(space: KeySpace, budget: object) -> None:
    with pytest.raises(AcceptanceError, match="expected a share, 0 to less than 1"):
        CalibratedThresholds(Export(space, MANY), budget)  # type: ignore[arg-type]


@pytest.mark.parametrize(("budget", "hinted"), [(1, True), (2, False), (-1, False)])
def test_who_gives_percent_is_told_of_shares(space: KeySpace, budget: int, hinted: bool) -> None:
    with pytest.raises(AcceptanceError) as error:
        CalibratedThresholds(Export(space, MANY), budget)
    assert str(error.value).endswith("; 1 % is 0.01") is hinted


@pytest.mark.parametrize(
    ("thresholds", "kind", "message"),
    [
        ((), "closed_loop", "no closed_loop threshold at 0.01, but none at all; calibrate"),
        ((MANY[1],), "closed_loop", "but closed_loop at 0.05; calibrate"),
        ((MANY[2],), "closed_loop", "but fixed_store at 0.01; calibrate"),
        ((MANY[0],), "fixed_store", "no fixed_store threshold at 0.01, but closed_loop at 0.01"),
        ((MANY[5],), "closed_loop", "none at all"),  # of a code, another measure
        ((threshold(key_space="beef"),), "closed_loop", "is of key space beef, the export's is f0"),
        ((MANY[0], threshold(0.3)), "closed_loop", "two closed_loop thresholds at 0.01"),
        ((threshold(1.2),), "closed_loop", "threshold is 1.2; expected a cosine"),
        ((MANY[4], MANY[1]), "closed_loop", "on toy/calibration, so that nothing would ever be "),
        ((MANY[4], MANY[1], MANY[2]), "closed_loop", "; budgets that are kept: 0.05; take one, or"),
    ],
)
def test_what_does_not_hold_here_is_refused_in_one_line(
    space: KeySpace, thresholds: tuple[StoredThreshold, ...], kind: str, message: str
) -> None:
    with pytest.raises(AcceptanceError) as caught:
        CalibratedThresholds(Export(space, thresholds), 0.01, kind)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_modalities_that_were_not_calibrated_are_refused_by_name(
    space: KeySpace, key: Make
) -> None:
    rule = CalibratedThresholds(Export(space, MANY[:1]), 0.01)
    with pytest.raises(AcceptanceError, match=r"for requests of text, only for image\+text"):
        rule.threshold(key(1), "text")
    mended = PerModalities({BOTH: rule, "text": FixedThreshold(None)})
    assert (mended.threshold(key(1), BOTH), mended.threshold(key(1), "text")) == (0.9, None)


class Recorder(FixedThreshold):
    """Keeps what it is told."""

    def __init__(self, value: float) -> None:
        super().__init__(value)
        self.told: list[object] = []

    def observe(self, key: Key, modalities: str) -> None:
        self.told.append(modalities)

    def audited(self, key: Key, modalities: str, similarity: float, equivalent: bool) -> None:
        self.told.append((similarity, equivalent))

    def state(self) -> dict[str, object]:
        return {"told": self.told}

    def restore(self, state) -> None:  # type: ignore[no-untyped-def]
        self.told = state["told"]


def divided(how: str, space: KeySpace, key: Make, *rules: Recorder):  # type: ignore[no-untyped-def]
    """A rule that gives a request to one of two, and a request for each."""
    if how == "scope":
        return (
            PerScope({key(1, 1).scope_digest: rules[0]}, rules[1]),
            [(key(1, 1), BOTH), (key(1, 2), BOTH)],
        )
    if how == "space":
        other = replace(space, fingerprint="beef")
        rule = PerKeySpace(dict(zip(("f00d", "beef"), rules, strict=True)))
        return rule, [(key(1), BOTH), (key(1, 0, other), BOTH)]
    rule = PerModalities(dict(zip((BOTH, "text"), rules, strict=True)))
    return rule, [(key(1), BOTH), (key(1), "text")]


@pytest.mark.parametrize("how", ["scope", "space", "modalities"])
def test_rules_that_divide_requests_tell_the_one_whose_it_is(
    space: KeySpace, key: Make, how: str
) -> None:
    rules = Recorder(0.1), Recorder(0.2)
    rule, requests = divided(how, space, key, *rules)
    for number, (asked, modalities) in enumerate(requests):
        assert rule.threshold(asked, modalities) == rules[number].value
        rule.observe(asked, modalities)
        rule.audited(asked, modalities, 0.5 + number, not number)
        assert rules[number].told == [modalities, (0.5 + number, not number)]
        assert len(rules[1 - number].told) == 2 * number
    again = Recorder(0.1), Recorder(0.2)
    divided(how, space, key, *again)[0].restore(rule.state())
    assert [one.told for one in again] == [one.told for one in rules]


def test_without_a_default_others_are_refused(space: KeySpace, key: Make) -> None:
    rule = PerKeySpace({"beef": FixedThreshold(0.5)})
    with pytest.raises(AcceptanceError, match="no rule for f00d, only for beef"):
        rule.threshold(key(1), BOTH)


@pytest.mark.parametrize("value", [1.0001, -1.5, float("nan"), float("inf"), "0.9", True])
def test_a_threshold_that_is_no_cosine_is_refused(value: object) -> None:
    with pytest.raises(AcceptanceError, match="expected a cosine, -1 to 1"):
        FixedThreshold(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, 0, 0.5, 1, None])
def test_a_fixed_threshold_is_the_same_for_all(key: Make, value: float | None) -> None:
    rule = FixedThreshold(value)
    rule.observe(key(1), BOTH)
    rule.audited(key(1), BOTH, 1.0, False)
    rule.restore(rule.state())
    assert rule.threshold(key(2), "text") == value
