from __future__ import annotations

import numpy as np
import pytest

from keynet.replay.semantic_trace import SemanticTrace
from keynet.replay.tally import load, tally, thirds

TRACE = SemanticTrace(
    request=np.arange(4),
    object=np.arange(4),
    time=np.array([0.0, 1.0, 1.5, 11.0]),
    size=np.array([1, 10, 100, 1000]),
    cost=np.array([1.0, 2.0, 4.0, 8.0]),
    scope=np.array([""] * 4),
    verbatim=np.zeros(4, bool),
)
OUTCOME = np.array([0, 1, 2, 0], np.int8)
ORACLE = np.array([False, True, True, False])
SECONDS = np.array([1.0, 2.0, 3.0, 4.0], np.float32)


def test_what_is_counted() -> None:
    found = tally(TRACE, OUTCOME, ORACLE, SECONDS)
    assert (found.visits, found.hits, found.false_hits, found.oracle) == (4, 1, 1, 2)
    assert (found.bytes_asked, found.bytes_moved) == (1111, 1001)
    assert (found.cost_asked, found.cost_saved) == (15.0, 2.0)
    assert (found.hit_rate, found.false_hit_rate, found.served) == (0.25, 0.5, 2)
    assert found.lookup_p50 == 2.5


def test_parts_add_up_and_nothing_is_nothing() -> None:
    parts = [tally(TRACE, OUTCOME, ORACLE, SECONDS, where) for where in (ORACLE, ~ORACLE)]
    whole = tally(TRACE, OUTCOME, ORACLE, SECONDS)
    for name in ("visits", "hits", "false_hits", "oracle", "bytes_moved", "cost_saved"):
        assert sum(getattr(part, name) for part in parts) == getattr(whole, name)
    none = tally(TRACE, OUTCOME, ORACLE, SECONDS, np.zeros(4, bool))
    assert none.false_hit_rate is None and none.hit_rate == 0 and none.lookup_p99 == 0


def test_load_is_visits_a_second_of_the_window() -> None:
    assert load(TRACE, 10.0).tolist() == pytest.approx([0.3, 0.3, 0.3, 0.1])
    assert load(TRACE, 1.0).tolist() == [1, 2, 2, 1]
    with pytest.raises(ValueError, match="window is 0"):
        load(TRACE, 0)


def test_thirds_part_visits_in_three() -> None:
    assert np.bincount(thirds(np.random.default_rng(0).random(300))).tolist() == [100, 100, 100]
