"""The wheel holds what the tree holds: packages, configuration, extras."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PROJECT["tool"]["setuptools"]
TOP_LEVEL = {"keynet", "aligners", "data", "distill"}


def packages_in_the_tree() -> set[str]:
    found = set()
    for top in TOP_LEVEL:
        for init in (ROOT / top).rglob("__init__.py"):
            found.add(".".join(init.parent.relative_to(ROOT).parts))
    return found


def test_packages_listed_are_the_packages_of_the_tree() -> None:
    assert set(SETUPTOOLS["packages"]) - {"keynet.conf"} == packages_in_the_tree()


def test_every_folder_with_python_is_a_package() -> None:
    folders = {path.parent for top in TOP_LEVEL for path in (ROOT / top).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_nothing_else_lies_at_the_top_level_of_the_wheel() -> None:
    assert {name.split(".")[0] for name in SETUPTOOLS["packages"]} == TOP_LEVEL
    assert "py-modules" not in SETUPTOOLS


def test_configuration_ships_as_keynet_conf() -> None:
    assert SETUPTOOLS["package-dir"] == {"keynet.conf": "conf"}
    globs = SETUPTOOLS["package-data"]["keynet.conf"]
    shipped = {path for glob in globs for path in (ROOT / "conf").glob(glob)}
    files = {path for path in (ROOT / "conf").rglob("*.*") if path.suffix not in {".py", ".pyc"}}
    assert files and shipped == files
    assert (ROOT / "conf" / "__init__.py").exists()  # pkg://keynet.conf needs a regular package


def test_data_files_ship() -> None:
    shipped = {
        path for glob in SETUPTOOLS["package-data"]["data"] for path in ROOT.glob(f"data/{glob}")
    }
    files = {path for path in (ROOT / "data").rglob("*.*") if path.suffix not in {".py", ".pyc"}}
    assert files and shipped == files


def test_extras_parse_and_have_lower_bounds() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    assert set(extras) == {
        "train", "demo", "teachers", "formats", "parquet", "sweep", "ray", "slurm", "wandb", "dev",
    }  # fmt: skip
    for line in [*project["dependencies"], *(line for extra in extras.values() for line in extra)]:
        requirement = Requirement(line)
        if requirement.name == project["name"]:
            assert requirement.extras <= set(extras)
        else:
            assert ">=" in str(requirement.specifier), line


def test_every_dependency_says_why() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    dependencies = [line for line in lines if re.match(r'\s+"[a-z][\w-]*[<>]=', line)]
    assert len(dependencies) > 15
    assert [line for line in dependencies if "#" not in line] == []


def test_runtime_dependencies_hold_nothing_that_trains() -> None:
    names = {Requirement(line).name for line in PROJECT["project"]["dependencies"]}
    assert names == {"torch", "numpy", "pillow", "tokenizers", "safetensors", "faiss-cpu"}


def test_gitignore_does_not_swallow_code() -> None:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    names = {line.strip("/") for line in lines if line and not line.startswith("#")}
    assert names.isdisjoint({"data", "cache", "conf", "distill", "models"})
