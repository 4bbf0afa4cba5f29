"""Exports that take each other's place: interrupted, at once, and with something in the way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from keynet.export.loader import load_key_model
from keynet.export.manifest import ArtefactError, read_manifest
from keynet.export.publish import publish, recover

ROOT = Path(__file__).parents[3]
KILLED = """
import os, signal, sys
from pathlib import Path
from keynet.export.publish import publish
complete, target, at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
renames = []
rename = Path.rename
def counted(self, other):
    renames.append(other)
    if len(renames) == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, other)
Path.rename = counted
publish(complete, target)
"""


@pytest.fixture
def target(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "export"))


def another(target: Path, name: str = ".export.new") -> Path:
    """A complete folder beside the export, of another version."""
    folder = Path(shutil.copytree(target, target.with_name(name)))
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"version": 1', '"version": 2', 1))
    return folder


def killed(complete: Path, target: Path, at: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLED, complete, target, str(at)], cwd=ROOT, check=False
    )
    assert run.returncode == -signal.SIGKILL


def test_killed_between_the_renames_the_export_is_named_and_put_back(
    target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed(another(target), target, at=2)
    assert not target.exists()
    aside = target.with_name(".export.old")
    with pytest.raises(ArtefactError, match=rf"set the one before aside: mv {aside} {target}$"):
        load_key_model(target)
    recover(target)
    assert load_key_model(target).space.version == 1
    assert f"{target} is put back" in caplog.text
    assert f"{target.with_name('.export.new')} is an export under way, or left" in caplog.text
    assert not aside.exists()


def test_killed_before_the_renames_nothing_has_changed(target: Path) -> None:
    killed(another(target), target, at=1)
    recover(target)
    assert read_manifest(target).key_space.version == 1


def test_killed_after_the_renames_the_old_export_goes(
    target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(another(target), target)
    old = Path(shutil.copytree(target, target.with_name(".export.old")))
    (old / "tokenizer.json").unlink()  # half removed
    recover(target)
    assert read_manifest(target).key_space.version == 2
    assert [path.name for path in target.parent.iterdir()] == ["export"]
    assert "was replaced and is removed" in caplog.text


def test_what_is_in_the_way_of_an_export_set_aside_is_named(target: Path) -> None:
    target.rename(target.with_name(".export.old"))
    target.mkdir()
    (target / "thesis.tex").write_text("x")
    with pytest.raises(ArtefactError, match=r"cannot be put back .* move what is at"):
        recover(target)
    (target / "thesis.tex").unlink()
    recover(target)
    assert read_manifest(target).key_space.version == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_export_that_cannot_be_moved_leaves_the_old_one(
    target: Path, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, rename = another(target), Path.rename

    def refused(self: Path, other: Path) -> Path:
        if self == complete:
            raise error(28, "No space left on device")
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(error):
        publish(complete, target)
    assert read_manifest(target).key_space.version == 1
    assert not target.with_name(".export.old").exists()


@pytest.mark.parametrize("there", [True, False])
def test_exports_at_once_are_never_mixed(target: Path, there: bool) -> None:
    files = {path.relative_to(target) for path in target.rglob("*")}
    for turn in range(20):
        made = [another(target, f"{turn}-{number}") for number in range(4)]
        for number, folder in enumerate(made):
            for path in folder.rglob("*.json"):
                os.utime(path, (number, number))
        if not there:
            shutil.rmtree(target)
        failed: list[Exception] = []
        start = threading.Barrier(len(made))

        def run(
            folder: Path,
            failed: list[Exception] = failed,
            start: threading.Barrier = start,
        ) -> None:
            start.wait()
            try:
                publish(folder, target)
            except (ArtefactError, OSError) as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(folder,)) for folder in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recover(target)
        assert read_manifest(target).key_space.version == 2
        assert {path.relative_to(target) for path in target.rglob("*")} == files
        assert len({path.stat().st_mtime for path in target.rglob("*.json")}) == 1
        assert not failed  # they take turns
