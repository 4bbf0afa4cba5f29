"""The walks of the documentation, small: every command of a page, one after another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from keynet.evaluation.report import read_report

ROOT = Path(__file__).parents[1]
RUNS = ("docs/artefact.md", "docs/own-data.md", "docs/scale.md")

pytestmark = pytest.mark.slow
Documented = Callable[[str], list[list[str]]]
Walk = Callable[..., subprocess.CompletedProcess[str]]
Small = dict[str, tuple[str, ...]]


def test_own_data(tmp_path: Path, documented: Documented, walk: Walk, small: Small) -> None:
    judged = [option for option in small["run"] if option.startswith("evaluation.")]
    of = {"train.py": small["run"], "scripts.evaluate": judged}
    of |= {"scripts.write_chat_log": ["lines=600"], "scripts.profile_data": []}
    commands = documented("docs/own-data.md")
    for words in commands:
        [program] = [word for word in words if word in of]
        options = [one for one in of[program] if not one.startswith("name=")]  # a folder's
        done = walk(words, options)
        if program == "scripts.evaluate":
            assert "oracle" in done.stdout
    assert len(commands) == 6
    assert (tmp_path / "TRIPLES.jsonl").read_text().count("\n") > 0
    assert read_report(tmp_path / "outputs/chat_log/chat_log/latest/evaluation/report.json")


def test_scale_trains(tmp_path: Path, documented: Documented, walk: Walk, small: Small) -> None:
    commands = [words for words in documented("docs/scale.md") if "train.py" in words]
    assert len(commands) == 5
    steps = []
    for words in commands:
        done = walk(words, [*small["data"], *small["run"]])
        steps.append((words[0], done.stdout.count("step 2 of 2")))
    # The third goes on with what the second has ended.
    told = [("torchrun", 1), ("torchrun", 1), ("python", 0), ("torchrun", 1), ("python", 1)]
    assert steps == told
    named = tmp_path / "outputs" / "smoke" / "flickr8k"
    runs = [path for path in named.iterdir() if path.name != "latest"]
    assert len(runs) == 3  # one directory a run, whose name torchrun or the time gives
    for run in [*runs, tmp_path / "outputs" / "two"]:
        assert (run / "report.json").exists()
        assert (run / "log.txt").read_text().count("step 2 of 2") == 1


@pytest.mark.parametrize("launcher", ["local", "ray"])
def test_scale_sweeps(
    launcher: str,
    tmp_path: Path,
    documented: Documented,
    walk: Walk,
    small: Small,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if launcher == "ray":
        pytest.importorskip("ray")
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray keeps a token
    rest = [words for words in documented("docs/scale.md") if "train.py" not in words]
    [words] = rest
    number = words.index("--trials") + 1
    words = [*words[:number], "2", *words[number + 1 :], "--launcher", launcher]
    words += ["--subset", "same_drawing"]  # so few drawings have no other
    done = walk(words, [*small["data"], *small["run"]])
    assert "best: trial " in done.stdout
    assert "train.py experiment=mm_align data.source.fold=dev" in done.stdout
    found = read_report(tmp_path / "outputs" / "sweep" / "report.json")
    assert [record.value is not None for record in found] == [True, True], done.stderr


@pytest.mark.filterwarnings(r"ignore:`torch\.jit\.\w+` is deprecated:FutureWarning")
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler here")
def test_artefact_from_c(tmp_path: Path) -> None:
    """Of a graph with an artefact's inputs and outputs, whose code is that of its mean pixels."""

    class Graph(torch.nn.Module):
        def forward(
            self, images: torch.Tensor, image_mask: torch.Tensor, tokens: torch.Tensor,
            token_mask: torch.Tensor,
        ) -> tuple[torch.Tensor, ...]:  # fmt: skip
            shown = images.float().mean((2, 3)) * image_mask[:, None]
            read = (tokens * token_mask).sum(1, keepdim=True).float()
            logits = torch.cat([shown, read], 1).repeat(1, 16) - 100  # [B, 64]
            return logits, shown, read, logits, read

    text = (ROOT / "docs" / "artefact.md").read_text(encoding="utf-8")
    [block] = [part.split("```")[0] for part in text.split("```bash\n")[1:]]
    export = tmp_path / "outputs" / "demo" / "emoji" / "latest" / "export"
    export.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "encode.cpp", tmp_path / "docs")
    planes = torch.tensor([200, 0, 101], dtype=torch.uint8).view(3, 1, 1).expand(3, 144, 144)
    (tmp_path / "picture.planes").write_bytes(planes.contiguous().numpy().tobytes())
    sample = (planes[None].contiguous(), torch.ones(1, dtype=torch.bool))
    ids = torch.ones(1, 3, dtype=torch.int64)
    torch.jit.trace(Graph(), (*sample, ids, ids > 0)).save(export / "model.ts.pt")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-e", "-c", block], cwd=tmp_path, env={**os.environ, "PATH": path},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "bb" * 8  # 200 and 101 and 17 + 4 + 256 reach 100, 0 does not
