from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from keynet.training.config import explained, known_options


def interrupted() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemExit) as ended:
        explained(interrupted)
    assert ended.value.code == "stopped"


def test_who_asks_for_the_traceback_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(KeyboardInterrupt):
        explained(interrupted)


def test_an_option_that_no_training_reads_is_refused_by_name() -> None:
    known = {"seed": 0, "steps": 3}
    assert known_options(known) == known
    with pytest.raises(ValueError, match="no option 'stesp'; known are name, seed, key_dim, "):
        known_options(known | {"stesp": 3})


def test_nobody_is_told_to_add_a_typo(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken() -> None:
        raise ValueError("Could not override 'stesp'.\nTo append to your config use +stesp=20")

    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemExit) as ended:
        explained(mistaken)
    assert ended.value.code == "error: Could not override 'stesp'."


def test_a_missing_option_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def incomplete() -> None:
        _ = OmegaConf.create({"trace": {"path": "???"}}).trace.path

    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemExit) as ended:
        explained(incomplete)
    assert ended.value.code == "error: trace.path is not given; give trace.path=..."
