from __future__ import annotations

import argparse
import io
from typing import Any

import pytest
from rich.console import Console

from scripts import modality_drift
from scripts.embedded import Encoders, configuration


def test_drift_of_each_modality_is_told(sized_source: Any, toy_encoders: Encoders) -> None:
    args = argparse.Namespace(rows=50, seed=0)
    records = modality_drift.drift(sized_source, toy_encoders, configuration([]).loss, args)
    assert {r.subset for r in records} == {
        f"{subset}:drift_{modality}:{half}"
        for subset in ("all", "same_drawing")
        for modality in ("image", "text")
        for half in ("before", "after")
    }
    known = [(r.subset, r.method, r.metric) for r in records]
    assert len(set(known)) == len(known)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(modality_drift.drift_table(records))
    assert "crowded_bucket_rate" in console.export_text()


@pytest.mark.parametrize("option", ["--bits", "--seeds", "--queries"])
def test_options_of_the_comparison_are_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        modality_drift.parser().parse_args([option, "16"])
    assert f"unrecognized arguments: {option}" in capsys.readouterr().err
