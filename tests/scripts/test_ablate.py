from __future__ import annotations

import json
from collections.abc import Iterator
from math import nan
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.utils import get_class
from omegaconf import OmegaConf

from keynet.training.config import register
from scripts.ablate import _append, composed, described, folder_of, stored, tabulated
from scripts.ablations import TABLES, Row

CONF = Path(__file__).parents[2] / "conf"
ROWS = [
    (table, name, row)
    for table, content in TABLES.items()
    for name, row in (content.rows | content.captioned).items()
]


@pytest.fixture(autouse=True)
def hydra() -> Iterator[None]:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


@pytest.mark.parametrize(("table", "name", "row"), ROWS, ids=[f"{t}-{n}" for t, n, _ in ROWS])
def test_every_row_composes_and_differs_from_its_neighbours(
    table: str, name: str, row: Row
) -> None:
    content = TABLES[table]
    cfg = composed(content, row, ["data=emoji"], seed=1)
    assert cfg.data.source.fold == "dev" and cfg.seed == 1
    get_class(cfg.fusion._target_)
    others = [r for n, r in (content.rows | content.captioned).items() if n != name]
    same = [described(composed(content, r, ["data=emoji"], seed=1)) for r in others]
    alike = [r for r, text in zip(others, same, strict=True) if text == described(cfg)]
    assert not [r for r in alike if r.start == row.start and r.by_code == row.by_code]
    if row.start is not None:
        assert row.start in content.rows and content.rows[row.start].start is None


def test_what_is_given_comes_after_the_tables_own() -> None:
    table = TABLES["aligners"]
    cfg = composed(table, Row(), ["data=easy_vqa", "steps=7", "data.source.fold=test"], seed=0)
    assert (cfg.steps, cfg.data.source.fold) == (7, "test")


def test_a_row_without_teachers_drops_what_is_given_about_them() -> None:
    table = TABLES["teachers"]
    given = ["distill=packaged_quick", "distill.store=somewhere"]
    without = composed(table, table.rows["no teacher"], given, seed=0)
    assert OmegaConf.to_container(without.distill) == {}
    with_all = composed(table, table.rows["all, uniform"], given, seed=0)
    assert with_all.distill.store == "somewhere"
    assert with_all.distill.teachers.lite0.image_size == 128


def test_the_table_has_means_and_paired_gains() -> None:
    runs = {
        "base": [{"hit_rate": 0.5, "hits": {1: 0.25, 2: 0.75}}] * 3,
        "better": [{"hit_rate": 0.75, "recall": nan, "hits": {1: 0.5, 2: 1.0}}] * 3,
    }
    table = tabulated("toy", runs)
    columns = [column.header for column in table.columns]
    assert columns == ["row", "hit_rate", "recall", "hits less base (95 %, seeds and pictures)"]
    cells = [list(column.cells) for column in table.columns]
    assert cells[1] == ["0.500 (0.500 to 0.500)", "0.750 (0.750 to 0.750)"]
    assert cells[2] == ["n/a", "n/a"]
    assert cells[3][1] == "+0.250 (+0.250 to +0.250)"


def test_stored_runs_have_the_pictures_of_fresh_ones(tmp_path: Path) -> None:
    line = {"row": "a", "config": "c", "found": {"hit_rate": 0.5, "hits": {"3": 0.5}}}
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    assert stored(tmp_path / "results.jsonl")["a", "c"]["hits"] == {3: 0.5}
    assert stored(tmp_path / "none.jsonl") == {}


def test_a_line_half_written_is_written_again_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    whole = json.dumps({"row": "a", "config": "c", "found": {}})
    results.write_text(f"{whole}\n{whole[:20]}")
    assert list(stored(results)) == [("a", "c")]
    _append(results, whole.replace('"a"', '"b"'))
    assert results.read_text().count("\n") == 2 and len(stored(results)) == 2
    results.write_text(f"[]\n{whole}\n")
    with pytest.raises(ValueError, match=r"results\.jsonl line 1 is no run"):
        stored(results)


def test_another_configuration_has_another_folder(tmp_path: Path) -> None:
    table = TABLES["augment"]
    one, other = (
        folder_of(tmp_path, "a", composed(table, Row(), ["data=emoji", f"steps={n}"], seed=0))
        for n in (1, 2)
    )
    assert one.parent == tmp_path and one != other
