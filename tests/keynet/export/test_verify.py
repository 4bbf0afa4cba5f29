from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keynet.export.verify import main


def test_a_sound_export_prints_a_line_for_each_check(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(exported)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert all(line.startswith("ok  ") for line in lines)
    assert lines[0] == "ok    manifest: tiny v1, 16 numbers, 64 bits"
    assert lines[-1] == "ok    model.ts.pt: 3 golden requests, 0 bits differ on cpu"


def test_each_failing_file_is_named(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "export"
    shutil.copytree(exported, folder)
    (folder / "tokenizer.json").unlink()
    (folder / "golden/1.png").write_bytes(b"")
    assert main([str(folder)]) == 1
    captured = capsys.readouterr()
    failed = [line for line in captured.out.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 2
    assert "tokenizer.json is missing" in failed[0]
    assert "1.png has 0 bytes" in failed[1]
    assert "export is not sound" in captured.err


def test_the_command_line_ends_with_the_reason(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "keynet.export.verify", str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "manifest.json does not exist; give the folder of an export" in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_a_device_that_is_not_there(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(exported), "--device", "cuda:99"]) == 1
    assert "device 'cuda:99' is not available" in capsys.readouterr().err
