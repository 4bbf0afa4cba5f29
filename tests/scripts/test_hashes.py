from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from keynet.evaluation.labels import Labels
from scripts import hashes
from scripts.embedded import Encoders, configuration


def test_all_hashes_are_compared_and_the_rows_are_stored(
    sized_source: Any,
    toy_encoders: Encoders,
    asked_so_far: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hashes, "EPOCHS", 2)
    args = argparse.Namespace(rows=50, queries=20, bits=[16], seeds=[0, 1])
    given = sized_source, toy_encoders, configuration([]).loss, args
    records = hashes.compare(*given)
    methods = dict.fromkeys((r.method, r.bits) for r in records)
    assert list(methods) == [
        ("concat_l2", None), ("joint_hash", 16), ("orthohash", 16), ("itq", 16), ("pca_sign", 16),
    ]  # fmt: skip
    assert {r.metric for r in records} == {"map_at_all", "map_at_1000"}
    assert all(r.value is not None and 0 < r.value <= 1 and r.n == 20 for r in records)
    asked = asked_so_far()
    assert hashes.compare(*given) == records
    assert asked_so_far() == asked
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(hashes.compared_table(records))
    assert "orthohash" in console.export_text()


def test_rows_too_few_for_the_bits_are_refused_before_training(
    sized_source: Any, toy_encoders: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "joint_hash", None)
    args = argparse.Namespace(rows=50, queries=20, bits=[16, 128], seeds=[0])
    with pytest.raises(ValueError, match="128"):
        hashes.compare(sized_source, toy_encoders, configuration([]).loss, args)


def test_queries_and_database_share_no_picture(sized_source: Any) -> None:
    both = [r for r in sized_source.requests("test") if r.image is not None and r.text is not None]
    labels = Labels.of(both)
    asked, database = hashes.between_pictures(labels, 1000)
    assert not np.isin(labels.picture[asked], labels.picture[database]).any()
    assert np.isin(labels.group[asked], labels.group[database]).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "-5"], "--rows: -5 is no whole number from 8 to"),
        (["--rows", "0"], "--rows: 0 is no whole number from 8 to"),
        (["--queries", "-1"], "--queries: -1 is no whole number from 1 to"),
        (["--seeds", "-1"], "--seeds: -1 is no whole number from 0 to"),
        (["--seeds", "x"], "--seeds: x is no whole number from 0 to"),
        (["--bits", "7"], "--bits: invalid choice: 7"),
        (["--bits", "256"], "--bits: invalid choice: 256"),
        (["--drift"], "unrecognized arguments: --drift"),
    ],
)
def test_what_the_command_line_cannot_be(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        hashes.parser().parse_args(words)
    assert message in capsys.readouterr().err
