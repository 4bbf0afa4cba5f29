from __future__ import annotations

import pytest

from keynet.training.config import explained


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
