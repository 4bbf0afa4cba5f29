from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keynet.cache.policies import rising
from keynet.cache.policies.rising import SLACK, RisingRanks
from keynet.cache.policies.rows import Rows


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=80))
def test_rows_are_a_dict(steps: list[tuple[bool, int]]) -> None:
    rows, model = Rows(values=(3, np.float32), numbers=(1, np.int64)), {}
    for number, (add, pick) in enumerate(steps):
        if add or not model:
            rows.add(number, values=np.full(3, pick), numbers=-number)
            model[number] = pick
        else:
            entry = sorted(model)[pick % len(model)]
            rows.remove(entry)
            del model[entry]
        assert len(rows) == len(model) and sorted(rows.entries) == sorted(model)
        assert rows["values"].shape == (len(model), 3)
        assert rows["numbers"][:, 0].tolist() == [-entry for entry in rows.entries]
        for entry, value in model.items():
            assert (rows.row("values", entry) == value).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("arxp"), st.integers(0, 50)), max_size=120))
def test_ranks_come_lowest_first(steps: list[tuple[str, int]]) -> None:
    ranks, model = RisingRanks(), {}
    for number, (what, pick) in enumerate(steps):
        entry = sorted(model)[pick % len(model)] if model else None
        if what == "a" or entry is None:
            model[number] = (float(pick), number)
            ranks.add(number, model[number])
        elif what == "r":
            model[entry] = (model[entry][0] + pick, number)
            ranks.raise_to(entry, model[entry])
        elif what == "x":
            ranks.remove(entry)
            del model[entry]
        else:
            least = min(model, key=model.__getitem__)
            assert ranks.pop() == (least, model.pop(least))
        assert len(ranks) == len(model)


def test_ranks_of_what_is_gone_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rebuilt = []
    monkeypatch.setattr(rising, "heapify", lambda heap: rebuilt.append(len(heap)))
    ranks = RisingRanks()
    for number in range(5000):
        ranks.add(number, (float(number), number))
        if number >= 10:
            ranks.remove(number - 10)
            assert len(ranks._heap) <= 2 * len(ranks) + SLACK
    assert set(rebuilt) == {10}
    assert len(rebuilt) <= 5000 / (10 + SLACK)  # each is paid for by as many that went
