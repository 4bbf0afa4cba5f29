"""The walk of docs/teachers.md, small: its commands, and its teacher of one's own."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from distill.store import DESCRIPTION

ROOT = Path(__file__).parents[2]
RUNS = ("docs/teachers.md",)
HUB = (
    "distill.teachers.clip.model=local-dir:CLIP", "distill.teachers.siglip2.path=SIGLIP2",
    "distill.teachers.internvl.path=INTERNVL",
)  # fmt: skip
# Of these, what is not run stands in tests/test_docs.py.
TOLD = ("pip install", "python -m scripts.ablate")

Walk = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def page() -> str:
    return (ROOT / RUNS[0]).read_text(encoding="utf-8")


@pytest.fixture
def folder(
    tmp_path: Path, page: str, open_clip_folder: str, siglip2_folder: str, internvl_folder: str
) -> Path:
    """What a reader has: checkpoints in folders, and the teacher of the page."""
    for name, kept in zip(
        ("CLIP", "SIGLIP2", "INTERNVL"),
        (open_clip_folder, siglip2_folder, internvl_folder), strict=True,
    ):  # fmt: skip
        shutil.copytree(kept, tmp_path / name)
    [code], [settings] = (
        re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        for language in ("python", "yaml")
    )
    (tmp_path / "colours.py").write_text(code)
    (tmp_path / "mine" / "distill" / "teachers").mkdir(parents=True)
    (tmp_path / "mine" / "distill" / "teachers" / "colours.yaml").write_text(settings)
    return tmp_path


@pytest.mark.slow
def test_the_walk(
    folder: Path,
    documented: Callable[[str], list[list[str]]],
    walk: Walk,
    small: dict[str, tuple[str, ...]],
) -> None:
    run: list[subprocess.CompletedProcess[str]] = []
    for words in documented(RUNS[0]):
        line = " ".join(words)
        if line.startswith(TOLD):
            continue
        options = [*small["data"], *small["run"], "trainer=cpu"]
        if "distill=hub" in line:  # no name of a hub is asked for
            options += HUB
        run.append(walk(words, options))
    assert len(run) == 6
    stores = {path.parent.name.split("-")[0] for path in folder.glob(f"**/{DESCRIPTION}")}
    assert stores == {"lite0", "minilm", "clip", "siglip2", "internvl", "colours"}
    described = [path for path in folder.glob(f"outputs/teachers/colours-cells4-*/{DESCRIPTION}")]
    assert len(described) == 1


def test_its_teacher_says_which_colours_are_where(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    from PIL import Image

    from keynet.types import Request

    monkeypatch.syspath_prepend(folder)
    teacher = importlib.import_module("colours").ColourTeacher(name="colours", cells=4)
    Image.new("RGB", (40, 20), (255, 0, 51)).save(folder / "red.png")
    found = teacher.encode([Request(image=folder / "red.png", text="a"), Request(text="b")])
    assert found.text is None and found.image is not None
    assert found.image[0].view(16, 3).unique(dim=0).tolist() == [[1.0, 0.0, pytest.approx(0.2)]]
    assert not found.image[1].any()


def test_what_goes_wrong_is_said_so(page: str) -> None:
    rows = re.findall(r"^\| (`+)(.+?)\1 \|", page.partition("## 7. ")[2], re.MULTILINE)
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "distill").glob("*.py")]
    said = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))  # messages over several lines
    assert len(rows) == 9
    assert not [row for _, row in rows if row not in said]


@pytest.mark.parametrize("option", ["weighting", "objectives", "standardise"])
def test_every_choice_is_on_the_page(option: str, page: str) -> None:
    from distill.distillation import STANDARDISERS

    files = (ROOT / "conf" / "distill" / option).glob("*.yaml")
    names = STANDARDISERS if option == "standardise" else [path.stem for path in files]
    assert names
    assert not [name for name in names if f"`{name}`" not in page]
