from __future__ import annotations

from data.broken_lines import BrokenError, BrokenLines


def test_all_numbers_are_kept_and_the_first_are_shown() -> None:
    broken = BrokenLines()
    for number in range(1, 8):
        broken.add(number, BrokenError("no response"))
    broken.add(9, BrokenError("broken JSON", "at 3"))
    broken.add(8, BrokenError("broken JSON", "at 7"))
    assert len(broken) == 9
    assert broken.by_reason() == {"no response": list(range(1, 8)), "broken JSON": [9, 8]}
    assert broken.summary() == (
        "7 no response (lines 1, 2, 3, 4, 5, …); 2 broken JSON, at 3 (lines 9, 8)"
    )


def test_an_error_reads_as_reason_and_detail() -> None:
    assert str(BrokenError("broken JSON", "at 3")) == "broken JSON (at 3)"
    assert str(BrokenError("empty line")) == "empty line"
