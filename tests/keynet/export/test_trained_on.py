from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keynet.export.exporter import export_key_model
from keynet.export.loader import load_key_model
from keynet.export.manifest import ArtefactError, read_manifest
from keynet.export.trained_on import TRAINED_ON, packed, read_trained_on, unpacked
from keynet.export.verify import main
from keynet.preprocess import Preprocessor
from keynet.types import Request

NUMBERS = np.array([2**64 - 1, 7, 2**63, 7], np.uint64)


@pytest.fixture
def telling(tmp_path: Path, model: Any, preprocessor: Preprocessor, golden: list[Request]) -> Path:
    """An export that tells what it was trained on."""
    given = (model, preprocessor, tmp_path / "export", "tiny", 1, golden)
    export_key_model(*given, trained_on=NUMBERS)
    return tmp_path / "export"


def test_the_file_is_plain_numbers_sorted_and_listed(telling: Path, exported: Path) -> None:
    content = (telling / TRAINED_ON).read_bytes()
    assert content.hex() == "0700000000000000" + "0000000000000080" + "ff" * 8
    manifest = read_manifest(telling)
    entry = manifest.files[TRAINED_ON]
    assert (entry.bytes, entry.sha256) == (24, hashlib.sha256(content).hexdigest())
    found = read_trained_on(telling)
    assert found is not None and found.dtype == np.uint64
    assert found.tolist() == [7, 2**63, 2**64 - 1]
    assert manifest.key_space == read_manifest(exported).key_space  # which has no such file


def test_an_export_that_does_not_tell_loads(exported: Path) -> None:
    load_key_model(exported)
    assert read_trained_on(exported) is None


def test_exported_again_without_it_does_not_tell(
    telling: Path, model: Any, preprocessor: Preprocessor, golden: list[Request]
) -> None:
    export_key_model(model, preprocessor, telling, "tiny", 1, golden)
    assert read_trained_on(telling) is None
    assert not (telling / TRAINED_ON).exists()


def test_verify_counts_them(telling: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(telling)]) == 0
    assert f"ok    {TRAINED_ON}: 3 pictures, and texts without one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes; expected 8 for each number"),
        (bytes(12), "has 12 bytes; expected 8 for each number"),
        (packed(NUMBERS)[::-1], "number 1 is not above the one before it"),
        (packed(NUMBERS)[:8] * 2, "number 1 is not above the one before it"),
    ],
)
def test_a_file_of_another_form_is_one_line(
    telling: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ArtefactError, match=message):
        unpacked(content)
    (telling / TRAINED_ON).write_bytes(content)
    listed = json.loads((telling / "manifest.json").read_text())
    digest = hashlib.sha256(content).hexdigest()
    listed["files"][TRAINED_ON] = {"sha256": digest, "bytes": len(content)}
    (telling / "manifest.json").write_text(json.dumps(listed))
    with pytest.raises(ArtefactError, match=message) as error:
        read_trained_on(telling)
    assert "\n" not in str(error.value)
    assert main([str(telling)]) == 1
    assert message in capsys.readouterr().err


def test_a_damaged_file_is_refused_by_loader_and_reader(telling: Path) -> None:
    damaged = bytearray((telling / TRAINED_ON).read_bytes())
    damaged[3] ^= 1
    (telling / TRAINED_ON).write_bytes(damaged)
    for read in (load_key_model, read_trained_on):
        with pytest.raises(ArtefactError, match=rf"{TRAINED_ON} was altered"):
            read(telling)
    (telling / TRAINED_ON).unlink()
    with pytest.raises(ArtefactError, match=rf"{TRAINED_ON} is missing"):
        read_trained_on(telling)
    shutil.rmtree(telling)
    with pytest.raises(ArtefactError, match="does not exist"):
        read_trained_on(telling)
