from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from distill.teacher import TeacherError
from scripts.embedded import Encoders, configuration, report_folder


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("distill=none", "give distill=packaged_quick, and a store"),
        ("distill.store=null", "give distill=packaged_quick, and a store"),
        ("distill.store=3", r"distill\.store=3: expected a folder, as in \./3"),
        ("~distill.teachers.lite0", "the teacher lite0 is left out"),
        ("~distill.teachers.minilm", "the teacher minilm is left out"),
    ],
)
def test_without_a_store_or_an_encoder(override: str, message: str) -> None:
    with pytest.raises(TeacherError, match=message):
        Encoders(configuration([override]))


@pytest.mark.parametrize(
    "override",
    ["seed=7", "bits=999", "data.image_size=7", "loss=contrast_and_hash", "~loss.response", "x"],
)
def test_options_that_would_change_nothing_or_fail_are_refused(override: str) -> None:
    with pytest.raises(ValueError, match=f"^{override}: nothing here reads it; expected data="):
        configuration([override])


def test_weights_of_the_losses_are_numbers() -> None:
    with pytest.raises(ValueError, match=r"loss\.response\.weight=foo: expected a number"):
        configuration(["loss.response.weight=foo"])


def test_the_losses_are_the_joint_ones() -> None:
    given = ["data=easy_vqa", "data.source.fold=dev", "loss.contrastive.loss.temperature=0.1"]
    cfg = configuration([*given, "loss.response.weight=0.5"])
    assert cfg.data.source.fold == "dev" and cfg.loss.contrastive.loss.temperature == 0.1
    weights = {"contrastive": 0.4, "response": 0.5, "hash_cosine": 0.3}
    losses = OmegaConf.to_container(cfg.loss)
    assert {name: entry["weight"] for name, entry in losses.items()} == weights


def test_a_folder_that_cannot_be_written_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report_folder(tmp_path / "a/b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"--out .*file: nothing can be written there \(File ex"):
        report_folder(tmp_path / "file")

    def refuse(**given: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("scripts.embedded.tempfile.TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"there \(Permission denied\); give another folder"):
        report_folder(tmp_path / "a")
