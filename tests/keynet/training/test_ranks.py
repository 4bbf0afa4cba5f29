"""Two processes against one: see two_ranks.py for what both make."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("two_ranks.py")
spec = importlib.util.spec_from_file_location("two_ranks", PROGRAM)
assert spec is not None and spec.loader is not None
program: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]
HALF_WAY = f"checkpoints/epoch={program.HALF - 1}.ckpt"


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(PROGRAM), *map(str, arguments)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def curve(folder: Path) -> list[float]:
    """The losses of one process; its checkpoints are in ``one``."""
    found: list[float] = program.train(folder / "one", program.EPOCHS)
    assert len(found) == 2 * program.EPOCHS
    return found


@pytest.fixture(scope="module")
def two(folder: Path, curve: list[float]) -> dict[str, Any]:
    """All that two processes made; their checkpoints are in ``two``."""
    done = torchrun(folder, "compare")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = torch.load(folder / "two.pt", weights_only=True)
    return found


def furthest(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest of the relative differences, of which no expected value is zero."""
    assert found.keys() == expected.keys()
    return max(
        float((found[name] - value).norm() / value.norm()) for name, value in expected.items()
    )


@pytest.mark.parametrize("head", ["shared", "by_modality"])
def test_every_loss_has_the_gradient_of_one_process(two: dict[str, Any], head: str) -> None:
    expected = program.gradients(head)
    assert {*program.all_losses(), *(f"distill_{n}" for n in program.OBJECTIVES)} < {*expected}
    assert furthest(two[head], expected) < 1e-5


def test_chunks_have_the_gradient_of_the_whole(two: dict[str, Any]) -> None:
    expected = program.gradients(norm=False)
    assert furthest(program.gradients(chunk=5, norm=False), expected) < 1e-5
    assert furthest(two["chunk"], expected) < 1e-5


def test_a_repeated_forward_has_the_statistics_of_all_ranks(two: dict[str, Any]) -> None:
    assert furthest(two["chunk of all"], program.gradients()) < 1e-5


def test_the_losses_of_a_training_are_those_of_one_process(
    two: dict[str, Any], curve: list[float]
) -> None:
    assert curve[-1] < 0.8 * curve[0]
    assert two["curve"] == pytest.approx(curve, rel=1e-4)


def test_a_checkpoint_goes_on_with_another_number_of_processes(
    two: dict[str, Any], curve: list[float], folder: Path
) -> None:
    rest = curve[2 * program.HALF :]
    assert two["resumed"] == pytest.approx(rest, rel=1e-4)
    again = program.train(folder / "again", program.EPOCHS, folder / "two" / HALF_WAY)
    assert again == pytest.approx(rest, rel=1e-4)


def test_ranks_draw_apart_and_then_together(two: dict[str, Any]) -> None:
    torch.manual_seed(3)
    own = torch.cat([two[f"own draws {step}"] for step in range(2)])
    assert len(own.unique()) == 4
    for step in range(2):
        assert two[f"common draws {step}"].tolist() == [torch.rand(1).item()] * 2


def test_a_process_that_is_killed_ends_the_other_with_one_line_and_the_run_goes_on(
    tmp_path: Path, curve: list[float]
) -> None:
    done = torchrun(tmp_path, "kill")
    assert done.returncode == 1
    (line,) = re.findall("^error: .*", done.stderr, re.MULTILINE)
    assert line.startswith("error: rank 0 of 2 lost another one")
    assert f"run_dir={tmp_path} goes on" in line
    rest = program.train(tmp_path, program.EPOCHS, tmp_path / HALF_WAY)
    assert rest == pytest.approx(curve[2 * program.HALF :], rel=1e-4)
