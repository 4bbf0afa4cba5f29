from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keynet.export.manifest import (
    ArtefactError,
    StoredThreshold,
    parse_manifest,
    read_manifest,
    set_thresholds,
    write_manifest,
)

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def content(exported: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((exported / "manifest.json").read_text())
    return loaded


def test_what_is_written_is_read_back(exported: Path, tmp_path: Path) -> None:
    manifest = read_manifest(exported)
    write_manifest(manifest, tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]
    assert manifest.attribution == ["Art: nobody"]
    assert set(manifest.created_by) == {"torch", "pillow", "tokenizers"}


def test_what_is_optional_is_written_where_it_is_used(content: dict[str, Any]) -> None:
    assert content.keys().isdisjoint({"code_blocks", "parity", "parity_radius"})
    assert parse_manifest(json.dumps(content)).code_blocks is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format=2), "format is 2 and this version reads up to 1; upgrade"),
        (lambda c: c.update(format="1"), 'format is "1"; expected 1'),
        (lambda c: c.update(format=True), "format is true; expected 1"),
        (lambda c: c.pop("format"), "format is null; expected 1"),
        (lambda c: c.pop("golden"), "lacks 'golden'"),
        (lambda c: c["key_space"].pop("dim"), "lacks 'dim' in key_space"),
        (lambda c: c.update(_target_="os.system"), "unknown field '_target_'"),
        (lambda c: c["key_space"].update(_target_="os"), "unknown field '_target_' in key_space"),
        (
            lambda c: c.update(code_blocks={"image": [0, 65]}),
            "'image' at bits 0 to 65; expected 'image' and 'text', whole bytes",
        ),
        (lambda c: c.update(code_blocks={}), "code_blocks has nothing; expected"),
        (lambda c: c.update(code_blocks={"image": [0, 32]}), "expected 'image' and 'text'"),
        (lambda c: c.update(code_blocks={"image": [0, 32], "txt": [32, 64]}), "'txt' at bits 32"),
        (lambda c: c.update(code_blocks={"image": [0, 24], "text": [32, 64]}), "bits 0 to 64"),
        (lambda c: c.update(code_blocks={"image": [0, 40], "text": [32, 64]}), "bits 0 to 64"),
        (lambda c: c.update(code_blocks={"image": [8, 32], "text": [32, 64]}), "bits 0 to 64"),
        (lambda c: c.update(code_blocks={"image": [0, 32], "text": [32, 56]}), "bits 0 to 64"),
        (lambda c: c.update(code_blocks={"image": [0, 28], "text": [28, 64]}), "whole bytes"),
        (lambda c: c.update(code_blocks={"image": [0, 0], "text": [0, 64]}), "whole bytes"),
        (lambda c: c.update(code_blocks={"image": [0]}), r"code_blocks\['image'\] is \[0\]"),
        (lambda c: c.update(files=[]), r"files is \[\]; expected an object"),
        (lambda c: c.update(golden={}), r"golden is \{\}; expected a list"),
        (lambda c: c.update(attribution=[1]), r"attribution\[0\] is 1; expected text"),
        (lambda c: c["key_space"].update(bits=64.0), "key_space.bits is 64.0; expected an integer"),
        (lambda c: c["key_space"].update(bits=True), "key_space.bits is true"),
        (lambda c: c["key_space"].update(bits=96), "key_space has 96 bits"),
        (lambda c: c["key_space"].update(name=None), "key_space.name is null; expected text"),
        (lambda c: c["key_space"].update(fingerprint="x"), "16 hex digits"),
        (lambda c: c["preprocessing"].update(background=[1, 2]), r"background is \[1, 2\]"),
        (lambda c: c["preprocessing"].update(fit="crop"), 'fit is "crop"; expected .letterbox.'),
        (lambda c: c["preprocessing"].update(long_text=["error"]), "expected 'error' or 'fold'"),
        (lambda c: c["files"].pop("tokenizer.json"), "files lacks 'tokenizer.json'"),
        (lambda c: c["golden"][0].update(image="golden/9.png"), "which files does not list"),
        (lambda c: c["golden"][0].update(image=None, text=None), "neither image nor text"),
        (lambda c: c["golden"][0].update(code="00"), r"golden\[0\].code is not 16 hex digits"),
        (lambda c: c["golden"][0]["key"].pop(), r"golden\[0\].key has 15 numbers; expected 16"),
        (lambda c: c["golden"][0]["key"].__setitem__(0, 10**400), "expected a finite number"),
    ],
)
def test_what_is_not_format_1_is_refused(
    change: Change, message: str, content: dict[str, Any]
) -> None:
    change(content)
    with pytest.raises(ArtefactError, match=message) as caught:
        parse_manifest(json.dumps(content))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../model", "/etc/passwd", "a/../../b", "golden/..", "a\\b", "", ".", "a//b", "manifest.json",
     "C:/x", "x\n", ".hidden"],
)  # fmt: skip
def test_file_names_stay_inside_the_folder(name: str, content: dict[str, Any]) -> None:
    content["files"][name] = content["files"]["tokenizer.json"]
    with pytest.raises(ArtefactError, match="expected a file inside the export"):
        parse_manifest(json.dumps(content))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "holds an object|holds a list; expected an object"),
        ("null", "holds null; expected an object"),
        ('{"format": NaN}', "holds NaN, which JSON has not"),
        ('{"format": 1, "format": 1}', "names 'format' twice"),
        ('{"format": 1e999}', "format is Infinity; expected 1"),
    ],
)
def test_what_is_no_manifest_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        parse_manifest(text)


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"manifest.json does not exist; give the folder"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(ArtefactError, match="does not exist"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(ArtefactError, match="is not JSON"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(ArtefactError, match="cannot be read"):
        read_manifest(tmp_path)


def test_thresholds_are_added_to_an_export(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    shutil.copytree(exported, folder)
    fingerprint = read_manifest(folder).key_space.fingerprint
    fixed = StoredThreshold(
        "fixed_store", "image+text", None, 0.0, 0.01, 0.95, "emoji/calibration", 900, fingerprint
    )
    none = StoredThreshold(
        "closed_loop", "image+text", 256, None, 0.001, None, "emoji/calibration", 90, fingerprint
    )
    set_thresholds(folder, [fixed, none])
    assert read_manifest(folder).thresholds == [fixed, none]
    with pytest.raises(ArtefactError, match=r"thresholds\[0\] is for key space 'other'"):
        set_thresholds(folder, [replace(fixed, key_space="other")])
    assert read_manifest(folder).thresholds == [fixed, none]


@pytest.mark.parametrize("image", [[0, 32], [32, 64]])
def test_blocks_that_make_up_the_code_are_read(content: dict[str, Any], image: list[int]) -> None:
    text = [32, 64] if image == [0, 32] else [0, 32]
    content["code_blocks"] = {"image": image, "text": text}
    blocks = parse_manifest(json.dumps(content)).code_blocks
    assert blocks == {"image": tuple(image), "text": tuple(text)}
