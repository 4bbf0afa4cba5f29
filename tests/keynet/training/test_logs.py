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


def test_weights_and_biases_offline_keep_figures_and_pictures_in_the_run(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<p>a report</p>")
    Image.new("RGB", (4, 4)).save(tmp_path / "curve.png")
    found = loggers(WANDB, tmp_path, {"steps": 3})
    assert [type(one) for one in found] == [CSVLogger, WandbLogger]
    for one in found:
        one.log_metrics({"loss": 0.5}, step=1)
    sheet = Sheet("emoji", "test", "all", "demo", 256)
    records = [sheet.figure("p_chr_auc", 0.75), sheet.figure("hit_rate_at_0.01", None)]
    log_report(found, records, tmp_path)
    [kept] = (tmp_path / "wandb").glob("offline-run-*")
    summary = b"".join(path.read_bytes() for path in kept.glob("*.wandb"))
    assert b"test/all/demo_256/p_chr_auc" in summary and b"hit_rate_at_0.01" not in summary
    media = [path.suffix for path in (kept / "files" / "media").rglob("*") if path.is_file()]
    assert media == [".png"]  # and not the page, which shows requests


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
