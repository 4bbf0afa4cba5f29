"""What a cache would have saved."""

import numpy as np
import pytest

from keynet.evaluation.labels import Labels
from keynet.evaluation.records import Sheet
from keynet.evaluation.savings import savings_lines, savings_records
from keynet.replay.closed_loop import FALSE_HIT, HIT, MISS, ReplayResult
from keynet.types import Request

SHEET = Sheet("log", "test", "all", "mine", None)


def labels(tokens: bool = True) -> Labels:
    told = [{"tokens": str(10 * (n + 1))} if tokens else {} for n in range(6)]
    both = [Request(image=b"x", text="a", group="g", tags=told[n]) for n in range(4)]
    return Labels.of([*both, *(Request(text="a", group="g", tags=told[n]) for n in (4, 5))])


def passed(order: list[int], outcome: list[int]) -> ReplayResult:
    n = len(order)
    return ReplayResult(
        np.array(order), np.array(outcome, np.int8), np.zeros(n, np.int64),
        np.ones(n, np.float32), np.ones(n, bool),
    )  # fmt: skip


def test_passes_of_each_pattern_of_modalities_add_up() -> None:
    passes = {
        "single_pass": passed([3, 1, 0, 2], [MISS, HIT, HIT, FALSE_HIT]),
        "single_pass:vendor": passed([3, 1], [MISS, HIT]),  # part of the first
        "single_pass:text_only": passed([4, 5], [MISS, HIT]),
    }
    records = savings_records(SHEET, labels(), passes, 0.01, "")
    answered, wrongly, tokens = records
    assert (answered.metric, answered.value, answered.n) == ("answered_at_0.01", 0.5, 6)
    assert (wrongly.metric, wrongly.value, wrongly.n) == ("answered_wrongly_at_0.01", 0.25, 4)
    assert (tokens.metric, tokens.value, tokens.n) == ("tokens_saved_at_0.01", 10 + 20 + 60, 3)
    assert savings_lines(records) == (
        "At 1 % false hits a cache with mine's key would have answered 50.0 % of these 6 requests "
        "rightly, saving 3 requests and 90 tokens (of 210); 25.00 % of all it serves would have "
        "been wrong.",
    )


def test_what_no_threshold_serves_counts_as_asked_upstream() -> None:
    found = savings_records(
        SHEET,
        labels(tokens=False),
        {"single_pass:text_only": passed([4, 5], [MISS, HIT])},
        0.05,
        "",
    )
    assert [one.metric for one in found] == ["answered_at_0.05", "answered_wrongly_at_0.05"]
    assert found[0].value == pytest.approx(1 / 6)
    [nothing] = savings_records(SHEET, labels(), {}, 0.05, "needs 59 queries, has 7")
    assert (nothing.value, nothing.n) == (None, 6)
    assert savings_lines([nothing]) == (
        "What a cache with mine's key would have answered at 5 % false hits is n/a: needs 59 "
        "queries, has 7",
    )
    assert savings_lines([]) == ()


def test_one_modality_alone_is_counted_once() -> None:
    alone = labels().take(np.array([4, 5]))
    one = passed([0, 1], [MISS, HIT])
    passes = {"single_pass": one, "single_pass:text_only": one}
    answered, _, tokens = savings_records(SHEET, alone, passes, 0.01, "")
    assert answered.value == 0.5
    assert tokens.value == 60
