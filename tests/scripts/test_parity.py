"""What scripts.parity says of a run that it cannot compare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("null", "run=None: expected the folder of a run, such as outputs/demo/emoji/latest"),
        ("3", "run=3: expected the folder of a run"),
        ("nowhere", "nowhere/export/manifest.json does not exist; give the folder of an export"),
    ],
)
def test_a_run_that_is_none_is_one_line(run: str, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.parity", f"run={run}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
