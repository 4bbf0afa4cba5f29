"""Every command of the documentation is read as its program reads it, and run, or says why not.

A test module that runs all commands of a page names the page in its ``RUNS``.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from keynet.training.config import register
from keynet.training.search_space import search_space

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
# What nothing runs as it stands, by the reason. Their options are read all the same.
NOT_RUN = {
    "the address is whose copy it is": ("git clone <this repository> keynet", "cd keynet"),
    "minutes to an hour; tests/test_train.py trains the demo small": (
        "python train.py experiment=demo",
        "python train.py experiment=demo data=easy_vqa",
        "python train.py experiment=demo data=easy_vqa distill=none steps=400",
        "python train.py experiment=demo data.source.hold_out_vendor=openmoji",
        "python train.py experiment=keynet_tiny",
        "python train.py experiment=keynet_small",
        "python train.py experiment=flickr8k_tiny",
        "python train.py experiment=demo run_dir=outputs/demo/emoji/TIME",
    ),
    "minutes; tests/test_conf.py builds the models, tests/aligners trains the parts": (
        "python train.py experiment=mm_align",
        "python train.py experiment=clip_adapter_qformer",
        "python train.py experiment=diffusion_prior "
        "module.start_from=outputs/mm_align/emoji/latest",
        "python train.py experiment=joint_hash",
        "python train.py experiment=drift_adapter module.start_from=outputs/mm_align/emoji/latest",
        "python train.py experiment=mm_align encoder=open_clip data.image_size=224 "
        "data.max_tokens=72",
    ),
    "needs a run of the whole demo; tests/keynet/export and tests/test_train.py do it small": (
        "python train.py experiment=demo export.formats=[pt2,onnx] export.kernels=[80,90,100] "
        "run_dir=outputs/demo/emoji/TIME",
        "python -m scripts.parity run=outputs/demo/emoji/latest",
        "python -m scripts.evaluate export=outputs/demo/emoji/latest/export data=emoji",
    ),
    "an hour; tests/scripts/test_ablate.py runs tables of its own": (
        "python -m scripts.ablate aligners data=emoji data.source.fold=test",
        "python -m scripts.ablate teachers data=emoji",
    ),
    "another search of the sweep that docs/scale.md has, whose trials are run": (
        "python -m scripts.sweep --trials 6 --workers 2 experiment=mm_align data.source.fold=dev "
        "steps=100 aligner.dropout=choice(0.0,0.1,0.3)",
    ),
}  # fmt: skip
READ_ALONE = ("make", "pip")  # minutes, and the network; what they name is looked up
# Records of what was run once, for minutes to hours, most of it on data that is not here.
RECORDS = ("docs/experiments.md",)
SHELLS = re.compile(r"^ *```(?:sh|shell|console|zsh)\b|^ +```bash", re.MULTILINE)

Documented = Callable[[str], list[list[str]]]


def run_pages() -> set[str]:
    """Return the pages that test modules say they run."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        named = re.search(r"^RUNS = (\(.*?\))$", text, re.MULTILINE | re.DOTALL)
        if named and path != Path(__file__):
            found |= set(ast.literal_eval(named[1]))
    return found


def read(words: Sequence[str]) -> None:
    """Read a command as its program would, without running it."""
    program, *given = words
    if program == "torchrun":
        first = next(n for n, word in enumerate(given) if word == "-m" or word.endswith(".py"))
        program, given = "python", given[first:]
    if program == "python" and given[0] == "-m":
        read_module(given[1], given[2:])
    elif program == "python":
        assert given[0] == "train.py"
        read_options("train", given[1:])
    elif program == "make":
        rules = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(re.search(rf"^{target}:", rules, re.MULTILINE) for target in given)
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        [extras] = re.fullmatch(rf"install {project['name']}\[(.*)\]", " ".join(given)).groups()
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


def read_module(name: str, given: Sequence[str]) -> None:
    """Read the arguments of a module that is run: its parser's, or Hydra's options."""
    module = importlib.import_module(name)
    script = name.rpartition(".")[2]
    if script == "sweep":
        fixed, searched = search_space(module.arguments().parse_intermixed_args(given).options)
        assert searched
        read_options("train", fixed)
    elif script == "ablate":
        table = module.TABLES[given[0]]
        for row in table.rows.values():
            module.composed(table, row, given[1:], 0)
    elif hasattr(module, "parser"):
        args = module.parser().parse_args(given)
        read_options("train", getattr(args, "overrides", []))
    else:
        read_options(script if (ROOT / "conf" / f"{script}.yaml").exists() else "train", given)


def read_options(config: str, given: Sequence[str]) -> None:
    """Compose what a program of Hydra's is given, and resolve what says which data it is."""
    options = [option for option in given if not option.startswith("--config-dir=")]
    if len(options) < len(given):  # a folder of the reader's, with groups that are not ours
        options = [option for option in options if not option.startswith("+")]
    cfg = compose(config, overrides=options)
    assert OmegaConf.to_container(cfg.data.source, resolve=True)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_read_by_its_program(page: str, documented: Documented) -> None:
    register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for words in documented(page):
            try:
                read(words)
            except BaseException as error:
                error.add_note(f"{page}: {' '.join(words)}")
                raise


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_run_or_says_why_not(page: str, documented: Documented) -> None:
    if page in RECORDS or page in run_pages():
        return
    known = {" ".join(words) for run in run_pages() for words in documented(run)}
    known |= {line for lines in NOT_RUN.values() for line in lines}
    for words in documented(page):
        line = " ".join(words)
        assert line in known or words[0] in READ_ALONE, (
            f"{page}: nothing runs {line}; run the page in a test that names it in RUNS, or say in "
            "NOT_RUN why not"
        )


def test_what_is_not_run_is_documented_and_what_is_run_exists(documented: Documented) -> None:
    lines = [line for named in NOT_RUN.values() for line in named]
    found = {" ".join(words) for page in PAGES for words in documented(page)}
    assert set(lines) <= found
    assert len(lines) == len(set(lines))
    assert run_pages() <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_no_command_hides_in_another_kind_of_block(page: str) -> None:
    assert not SHELLS.findall((ROOT / page).read_text(encoding="utf-8"))
