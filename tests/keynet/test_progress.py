from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = (
    "import time\n"
    "from keynet.progress import progress_bar\n"
    "for _ in progress_bar(range(40), desc='pictures'):\n"
    "    time.sleep(0.01)\n"
)


def said(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


def test_a_file_is_told_that_it_began_and_ended_and_not_each_step() -> None:
    lines = said().strip().splitlines()
    assert len(lines) == 2  # a carriage return ends a line, too
    assert "pictures:   0%" in lines[0]
    assert "40/40" in lines[1]


def test_of_several_processes_the_first_alone_speaks() -> None:
    assert said(RANK="1") == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_it_does_not_end_the_work() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM + "print('done')"],
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
        )
    assert done.stdout == b"done\n"


def test_without_standard_error_it_says_nothing() -> None:
    program = f"import sys\nsys.stderr = None\n{PROGRAM}print('done')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"done\n"
