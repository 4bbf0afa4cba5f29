from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from scripts import write_chat_log as script

CONF = Path(__file__).parents[2] / "conf"


def config(tmp_path: Path, **changes: Any) -> Any:
    made = {
        "data": {"source": {}}, "path": str(tmp_path / "log.jsonl"), "lines": 100, "broken": 0.18,
        "repeats": 0.1, "seed": 0,
    }  # fmt: skip
    return OmegaConf.create(made | changes)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, toy_source: Any) -> None:
    monkeypatch.setattr(script, "instantiate", lambda _: toy_source)


def test_it_says_what_it_broke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.run(config(tmp_path))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{tmp_path / 'log.jsonl'}: 100 lines, 18 of them broken"
    assert len(said) == 19 and said[1].startswith("  1 broken JSON (line ")
    assert (tmp_path / "log.jsonl").read_bytes().count(b"\n") == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lines": 0}, "lines=0: expected a whole number from 1"),
        ({"lines": 1.5}, "lines=1.5: expected"),
        ({"broken": 1}, "broken=1: expected a share from 0, below 1"),
        ({"repeats": "x"}, "repeats=x: expected a share"),
    ],
)
def test_values_that_cannot_be_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        script.run(config(tmp_path, **changes))
    assert not list(tmp_path.iterdir())


def test_its_configuration_composes() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("write_chat_log", overrides=["data=easy_vqa", "path=LOG.jsonl"])
    assert OmegaConf.to_container(cfg.data.source, resolve=True)
    assert cfg.lines == 10_000
