"""The Triton kernels equal their definition: interpreted on a CPU, and compiled on a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("triton")

CHECKS = Path(__file__).with_name("kernel_checks.py")
ROOT = Path(__file__).parents[3]
ON_CPU = {"TRITON_INTERPRET": "1", "KEYNET_HASHING": "triton", "PYTHONPATH": str(ROOT)}


def interpreted(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python where Triton interprets."""
    return subprocess.run(
        [sys.executable, *command], env=os.environ | ON_CPU, cwd=ROOT, text=True,
        capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("check", ["keys", "search", "rerank"])
def test_interpreted_kernels_equal_their_definition(check: str) -> None:
    done = interpreted(str(CHECKS), check)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("check", ["keys", "search", "rerank"])
def test_compiled_kernels_equal_their_definition(check: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    checks().CHECKS[check]("cuda")


def test_a_cpu_without_the_interpreter_is_refused_in_one_line() -> None:
    from keynet.hashing.triton_launch import INTERPRETED, running_on

    assert not INTERPRETED
    with pytest.raises(ValueError, match="do not run on cpu; set TRITON_INTERPRET=1"):
        running_on(torch.device("cpu"))


def test_rows_are_read_past_the_last_code_only_inside_their_storage() -> None:
    from keynet.hashing.triton_search import readable_rows

    store = torch.zeros(8, 1024, dtype=torch.int32)  # word-major, of a capacity of 1024
    assert readable_rows(store[:, :1001].T) == 1008
    assert readable_rows(store.T) == 1024
    assert readable_rows(store[:, 20:].T) == 1004  # 1008 would end 4 words behind it
    assert readable_rows(torch.zeros(8, 1001, dtype=torch.int32).T) == 1001
    assert readable_rows(torch.zeros(1001, 8, dtype=torch.int32)) == 1001


def checks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel_checks", CHECKS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
