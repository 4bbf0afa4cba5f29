"""Loggers of a run."""

import sys
from pathlib import Path

import pytest
from PIL import Image
from pytorch_lightning.loggers import CSVLogger, WandbLogger

from keynet.evaluation.records import Sheet
from keynet.training.logs import log_report, loggers

WANDB = {"project": "keynet", "mode": "offline", "entity": None}


def test_without_settings_a_run_has_its_csv_alone(tmp_path: Path) -> None:
    [one] = loggers({}, tmp_path, {})
    assert isinstance(one, CSVLogger)
    assert Path(one.log_dir) == tmp_path / "metrics"
    log_report([one], [], tmp_path)  # and a report needs no more


class Recorder:
    """In the place of a run of Weights & Biases."""

    def __init__(self) -> None:
        self.summary: dict[str, object] = {}
        self.logged: dict[str, object] = {}
        self.finished = False

    def log(self, values: dict[str, object]) -> None:
        self.logged.update(values)

    def finish(self) -> None:
        self.finished = True


def test_a_report_gives_figures_and_its_curve_and_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("<p>requests</p>")
    Image.new("RGB", (4, 4)).save(tmp_path / "curve.png")
    run = Recorder()
    monkeypatch.setattr(WandbLogger, "experiment", run)
    found = loggers(WANDB, tmp_path, {"steps": 3})
    assert [type(one) for one in found] == [CSVLogger, WandbLogger]
    sheet = Sheet("emoji", "test", "all", "demo", 256)
    log_report(
        found, [sheet.figure("p_chr_auc", 0.75), sheet.figure("hit_rate_at_0.01", None)], tmp_path
    )
    assert run.summary == {"test/all/demo_256/p_chr_auc": 0.75}
    assert list(run.logged) == ["curve"]
    assert run.finished


@pytest.mark.slow
def test_offline_a_run_is_kept_in_its_directory(tmp_path: Path) -> None:
    one = loggers(WANDB, tmp_path, {"steps": 3})[1]
    one.log_metrics({"loss": 0.5}, step=1)
    one.experiment.finish()
    [kept] = (tmp_path / "wandb").glob("offline-run-*")
    assert list(kept.glob("*.wandb"))


def test_a_run_that_goes_on_logs_on(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ids = [loggers(WANDB, run, {})[1].version for run in (tmp_path, tmp_path, tmp_path / "other")]
    assert ids[0] == ids[1] != ids[2]


def test_a_mode_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"logger.mode='live': expected one of"):
        loggers(WANDB | {"mode": "live"}, tmp_path, {})


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError, match=r"keynet-cache\[wandb\]"):
        loggers(WANDB, tmp_path, {})
