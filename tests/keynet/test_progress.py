from __future__ import annotations

import os
import subprocess
import sys

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
