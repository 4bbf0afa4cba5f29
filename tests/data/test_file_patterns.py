from __future__ import annotations

from pathlib import Path

import pytest

from data.file_patterns import find_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in (2, 0, 1, 10):
        (tmp_path / f"train-{number:02}.tar").touch()
    return tmp_path


def names(found: list[Path]) -> list[str]:
    return [path.name for path in found]


def test_globs_ranges_and_paths_each_once_and_sorted(folder: Path) -> None:
    every = [f"train-{number:02}.tar" for number in (0, 1, 2, 10)]
    assert names(find_files(f"{folder}/train-*.tar", "shard")) == every
    assert names(find_files(f"{folder}/train-{{00..02}}.tar", "shard")) == every[:3]
    mixed = [folder / "train-10.tar", f"{folder}/train-0?.tar", f"{folder}/train-{{1..1}}*"]
    assert names(find_files(mixed, "shard")) == every


def test_two_ranges_in_one_pattern(tmp_path: Path) -> None:
    for one in "34":
        (tmp_path / one).mkdir()
        for two in ("09", "10"):
            (tmp_path / one / f"{two}.tar").touch()
    found = find_files(f"{tmp_path}/{{3..4}}/{{09..10}}.tar", "shard")
    expected = ["3/09.tar", "3/10.tar", "4/09.tar", "4/10.tar"]
    assert [str(path.relative_to(tmp_path)) for path in found] == expected


def test_a_name_with_the_letters_of_a_pattern_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a[1].json").touch()
    assert names(find_files(f"{tmp_path}/a[1].json", "caption file")) == ["a[1].json"]


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("none.tar", "none.tar"),
        ("none-*.tar", "none-*.tar"),
        ("train-{02..03}.tar", "train-03.tar"),
    ],
)
def test_a_pattern_without_a_file_is_named(folder: Path, pattern: str, named: str) -> None:
    with pytest.raises(FileNotFoundError) as error:
        find_files([folder / "train-00.tar", f"{folder}/{pattern}"], "shard")
    assert str(error.value) == f"no shard at '{folder}/{named}'; check the path or pattern"


def test_nothing_and_a_range_that_goes_down(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no Parquet file: the list of paths is empty"):
        find_files([], "Parquet file")
    with pytest.raises(ValueError, match=r"range \{2..1\} goes down"):
        find_files(f"{folder}/{{2..1}}.tar", "shard")
