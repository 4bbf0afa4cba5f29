"""The tables: what is n/a, what breaks its budget, and in which order methods stand."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from keynet.evaluation.records import Record
from keynet.evaluation.table import (
    Figures,
    all_grids,
    print_table,
    sorted_methods,
    terminal_table,
)


def record(
    metric: str,
    value: float | None,
    method: str = "keynet_tiny",
    bits: int | None = None,
    subset: str = "all",
    note: str = "",
) -> Record:
    return Record(
        "emoji", "test", subset, method, bits, metric, value, None, None, 4000, "share", note
    )


def headline() -> list[Record]:
    return [
        record("hit_rate_at_0.001", None, note="too few queries"),
        record("hit_rate_at_0.01", 0.912),
        record("false_hit_rate_at_0.01", 0.0123),
        record("replay_hit_rate_at_0.01", 0.801, bits=256, subset="single_pass"),
        record("replay_false_hit_rate_at_0.01", 0.0082, bits=256, subset="single_pass"),
        record("replay_hit_rate_at_0.01", 0.95, "oracle", subset="single_pass"),
    ]


def line(text: str, start: str) -> list[str]:
    return next(row.split() for row in text.splitlines() if row.strip().startswith(start))


def test_missing_is_na_and_a_broken_budget_is_flagged() -> None:
    cells = line(terminal_table(headline()), "keynet_tiny ")
    assert cells == ["keynet_tiny", "n/a", "91.2!", "-", "1.23!", "-", "-", "-", "-", "-"]
    assert "n/a (1): too few queries" in terminal_table(headline())


def test_many_reasons_for_na_do_not_bury_the_table() -> None:
    many = [record("hit_rate_at_0.01", None, bits=i, note=f"only {i} queries") for i in range(9)]
    assert terminal_table(many).count("n/a (1):") == 4
    assert "5 other reasons for n/a: see report.json" in terminal_table(many)


def test_a_kept_budget_is_not_flagged() -> None:
    assert line(terminal_table(headline()), "keynet_tiny 256")[8:10] == ["80.1", "0.82"]


def test_a_rate_at_its_budget_keeps_it() -> None:
    assert "1.00!" not in terminal_table([record("false_hit_rate_at_0.01", 0.01)])


def test_nan_counts_as_missing() -> None:
    assert "n/a" in line(terminal_table([record("hit_rate_at_0.01", float("nan"))]), "keynet_tiny")


def test_trained_first_then_baselines_then_oracle() -> None:
    names = [
        ("oracle", None), ("concat_l2", None), ("keynet_tiny", 64), ("exact", None),
        ("teacher:lite0", None), ("keynet_tiny", None), ("keynet_tiny", 256),
    ]  # fmt: skip
    records = [record("p_chr_auc", 0.5, name, bits) for name, bits in names]
    assert sorted_methods(records) == [
        ("keynet_tiny", None), ("keynet_tiny", 256), ("keynet_tiny", 64), ("exact", None),
        ("concat_l2", None), ("teacher:lite0", None), ("oracle", None),
    ]  # fmt: skip


def test_subsets_and_consistency_have_their_own_grids() -> None:
    records = [
        *headline(),
        record("hit_rate_at_0.01", 0.5, subset="other_vendor"),
        record("false_hit_rate_at_0.01", 0.02, subset="other_vendor"),
        record("consistency_bits", 0.9987, subset="jpeg"),
    ]
    _, subsets, service = all_grids(records)
    assert subsets.columns == (("store", "other_vendor", "hits / false"),)
    assert str(subsets.rows[0].cells[0]) == "50.0 / 2.00!"
    assert [str(cell) for cell in service.rows[0].cells] == ["jpeg", "99.87"]


def test_captioned_photographs_have_grids_of_their_own_and_only_then() -> None:
    beside = "text_to_image:teacher:clip"
    records = [
        record("recall_at_1", 0.4, subset="text_to_image"),
        record("recall_at_10", 0.81, subset="text_to_image"),
        record("recall_at_1", 0.5, subset="image_to_text"),
        record("retention_at_10", 0.9, subset=beside),
        record("overlap_at_10", None, subset=beside, note="no teacher"),
        record("recall_at_10_gain", 0.021, subset="text_to_image:keynet_old"),
        record("recall_at_10", 0.9, "teacher:clip", subset="text_to_image"),
        record("recall_at_1", 0.3, subset="other_vendor:A->B"),  # of drawings, not of captions
    ]
    alone, others = all_grids(records)
    assert alone.title == "emoji, test: captioned photographs"
    assert [(row.label, [str(cell) for cell in row.cells]) for row in alone.rows] == [
        ("keynet_tiny", ["40.0", "81.0", "50.0", "-"]),
        ("teacher:clip", ["-", "90.0", "-", "-"]),
    ]
    assert [(row.label, [str(cell) for cell in row.cells]) for row in others.rows] == [
        ("keynet_tiny", ["teacher:clip", "90.0", "n/a", "-"]),
        ("keynet_tiny", ["keynet_old", "-", "-", "+2.1"]),
    ]
    assert others.notes[1:] == ("n/a (1): no teacher",)
    text = terminal_table(records)
    assert line(text, "teacher:clip") == ["teacher:clip", "-", "90.0", "-", "-"]
    assert max(map(len, text.splitlines())) <= 100
    assert "captioned" not in terminal_table([*headline(), records[-1]])


def test_many_subsets_are_split_and_stay_within_the_width() -> None:
    records = [
        record("hit_rate_at_0.01", 0.5, subset=f"a_rather_long_subset_{i}") for i in range(9)
    ]
    text = terminal_table(records + headline())
    assert max(map(len, text.splitlines())) <= 100
    assert len(all_grids(records)) == 3


def test_a_pipe_gets_the_full_width_and_no_escapes() -> None:
    pipe = io.StringIO()
    print_table(headline(), Console(file=pipe))
    assert "\x1b" not in pipe.getvalue()
    assert len(line(pipe.getvalue(), "keynet_tiny ")) == 10


def test_a_name_in_brackets_is_no_markup() -> None:
    assert "[red]x" in terminal_table([record("p_chr_auc", 0.5, "[red]x")])


def test_no_records_say_so() -> None:
    assert "no figures measured" in terminal_table([])


def test_two_values_of_one_figure_are_refused() -> None:
    with pytest.raises(ValueError, match="two records of one figure"):
        Figures([record("p_chr_auc", 0.5), record("p_chr_auc", 0.6)])
