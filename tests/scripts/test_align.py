from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aligners.mm_align import MMAlign
from aligners.weights import load_weights, save_weights
from keynet.training.config import explained
from scripts.align import held_out, identities, load_head, main, read, recall


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures with two captions each: two views of 8 hidden numbers, and a third."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(200, 8))
    twice = np.repeat(hidden, 2, axis=0)
    views = {"image": np.repeat(hidden @ rng.normal(size=(8, 16)), 2, axis=0)}
    views["text"] = (twice + 0.1 * rng.normal(size=twice.shape)) @ rng.normal(size=(8, 12))
    views["audio"] = twice @ rng.normal(size=(8, 16))
    for name, rows in views.items():
        np.save(tmp_path / f"{name}.npy", rows.astype(np.float16))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["align", *words])
    main()


SMALL = ("--key-dim", "8", "--dropout", "0", "--epochs", "1")


def test_a_head_learns_pairs_and_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call(monkeypatch, "fit", "image.npy", "text.npy", *SMALL)
    said = capsys.readouterr().out
    assert re.search(r"trained on 360 pairs in [\d.]+ s; held out: 40", said)
    rows = {
        line[:14].strip(): [float(n) for n in re.findall(r"[\d.]+", line)]
        for line in said.splitlines()
        if re.match(r"\w+ to \w+", line)
    }
    assert rows["text to image"][2:] == [5.0, 50.0]  # 20 pictures
    assert rows["image to text"][2:] == pytest.approx([5.0, 44.2], abs=0.06)  # 2 of 40 captions
    assert rows["text to image"][0] > 50 and rows["image to text"][1] > 90
    assert "n/a" in said and "wrote head.safetensors: fp32" in said
    head = MMAlign(input_dims={"image": 16, "text": 12}, key_dim=8)
    assert load_weights(head, folder / "head.safetensors").dtype == "fp32"

    call(monkeypatch, "report", "head.safetensors", "image.npy", "text.npy")
    table = capsys.readouterr().out
    assert re.search(r"fp16, 0\.00 MB( +\d\.\de-\d\d){4}\n", table)
    assert re.search(r"int8, 0\.00 MB( +\d\.\de-0[2-9]){4}\n", table)


def test_a_seed_repeats_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.align.MIN_STEPS", 5)
    for out in ("a", "b"):
        call(monkeypatch, "fit", "image.npy", "text.npy", *SMALL, "--dtype", "int8", "--out", out)
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()


def test_three_modalities_and_a_hidden_layer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.align.MIN_STEPS", 5)
    call(monkeypatch, "fit", "image.npy", "text.npy", "audio=audio.npy", *SMALL, "--hidden", "12")
    said = capsys.readouterr().out
    assert len(re.findall(r"^\w+ to \w+", said, re.M)) == 6
    as_given = {
        line[:14].strip() for line in said.splitlines() if " to " in line and "n/a" not in line
    }
    assert as_given == {"image to audio", "audio to image"}
    call(monkeypatch, "report", "head.safetensors", "audio=audio.npy", "image.npy")
    assert "int8" in capsys.readouterr().out


def test_no_picture_is_on_both_sides(folder: Path) -> None:
    same = identities(read(["image.npy", "text.npy"])["image"])
    held = held_out(same, seed=3)
    assert int(held.sum()) == 40
    assert not set(same[held].tolist()) & set(same[~held].tolist())
    assert not torch.equal(held, held_out(same, seed=4))


def test_recall_by_hand() -> None:
    store = torch.eye(4)
    query = torch.tensor([[1.0, 0, 0, 0], [1, 0.5, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]])
    ids = torch.arange(4)
    assert recall(query, store, ids, ids) == [0.5, 1.0, 0.25, 1.0]  # a tie counts against
    assert recall(torch.ones(4, 4), store, ids, ids)[0] == 0
    # Rows 0 and 1 are one query with two answers, right if either comes first.
    query[1] = query[0]
    found = recall(query, store, torch.tensor([7, 7, 2, 3]), ids)
    assert found[0] == pytest.approx(2 / 3) and found[2] == pytest.approx((0.5 + 0.25 + 0.25) / 3)


def test_bad_input_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = np.load(folder / "image.npy")
    np.save("cube.npy", np.zeros((2, 2, 2), np.float32))
    np.save("whole.npy", np.zeros((4, 2), np.int64))
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    np.save("short.npy", good[:-1])
    np.save("few.npy", good[:60])
    good[7, 1] = np.nan
    np.save("nan.npy", good)
    np.savez("two.npz", a=good)
    Path("empty.npy").write_bytes(b"")
    np.save("zero_wide.npy", np.zeros((400, 0), np.float32))
    np.save("no_rows.npy", np.zeros((0, 8), np.float32))
    unlike = np.load("text.npy").astype(np.float32)
    for name, value in (("tiny", 1e-30), ("large", 3e38)):
        unlike[5] = value
        np.save(f"{name}.npy", unlike)
    Path("zip.npy").write_bytes(b"PK\x03\x04" + b"x" * 100)
    header = (folder / "image.npy").read_bytes()
    Path("token.npy").write_bytes(header[:10] + header[10:].replace(b"}", b" ", 1))
    large = np.lib.format.header_data_from_array_1_0(np.zeros((1, 1), np.float16))
    with open("memory.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, large | {"shape": (2**40, 2**20)})
    Path("unwritable").mkdir()
    Path("text.txt").write_text("no array")
    cases = {
        r"none.npy cannot be read as .npy \(.*No such file": ["none.npy", "text.npy"],
        r"cube.npy holds float32 \[2, 2, 2\]: expected one array of floats": ["cube.npy"],
        r"whole.npy holds int64": ["whole.npy"],
        r"zero_wide.npy is empty, \[400, 0\]: expected rows and a width": ["zero_wide.npy"],
        r"no_rows.npy is empty, \[0, 8\]": ["no_rows.npy"],
        "tiny.npy: row 5 has the norm 0 in float32": ["image.npy", "tiny.npy"],
        "large.npy: row 5 has the norm inf in float32": ["image.npy", "large.npy"],
        "zip.npy cannot be read": ["zip.npy"],
        "token.npy cannot be read": ["token.npy"],
        "memory.npy cannot be read": ["memory.npy"],
        "objects.npy cannot be read": ["objects.npy"],
        "two.npz holds an .npz": ["two.npz"],
        "empty.npy cannot be read": ["empty.npy"],
        "text.txt cannot be read": ["text.txt"],
        "nan.npy: row 7 is not finite": ["text.npy", "nan.npy"],
        "their numbers differ: image 400, text 399": ["image.npy", "short.npy"],
        "30 different rows in the first file: at least 110": ["few.npy", "few.npy"],
        "one modality alone": ["image.npy"],
        "audio.npy: name its modality, once": ["image.npy", "text.npy", "audio.npy"],
        "text=audio.npy: name its modality": ["image.npy", "text.npy", "text=audio.npy"],
        "type=audio.npy: name its modality": ["image.npy", "type=audio.npy"],
        "training=audio.npy: name its modality": ["image.npy", "training=audio.npy"],
        "there is no folder nowhere": ["image.npy", "text.npy", "--out", "nowhere/head"],
        "--out unwritable is a folder": ["image.npy", "text.npy", "--out", "unwritable"],
        "--key-dim 0: expected": ["image.npy", "text.npy", "--key-dim", "0"],
        "--epochs -1: expected": ["image.npy", "text.npy", "--epochs", "-1"],
        "--hidden -1: expected a whole number from 0": ["image.npy", "text.npy", "--hidden", "-1"],
        "--seed -1: expected": ["image.npy", "text.npy", "--seed", "-1"],
        "--dropout 1.0: expected": ["image.npy", "text.npy", "--dropout", "1"],
        "--dropout nan: expected": ["image.npy", "text.npy", "--dropout", "nan"],
    }
    for message, words in cases.items():
        with pytest.raises(ValueError, match=message) as caught:
            call(monkeypatch, "fit", *words)
        assert "\n" not in str(caught.value)


def test_where_nothing_can_be_written_is_said_before_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**given: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("scripts.align.tempfile.TemporaryFile", refuse)
    with pytest.raises(ValueError, match=r"nothing can be written to \. \(Permission denied\)"):
        call(monkeypatch, "fit", "image.npy", "text.npy")


def test_rows_of_the_second_file_on_both_sides_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.align.MIN_STEPS", 5)
    call(monkeypatch, "fit", "image.npy", "text.npy", *SMALL)
    assert "trained on in another pair" not in capsys.readouterr().out
    np.save("classes.npy", np.load("text.npy")[np.arange(400) % 10])
    call(monkeypatch, "fit", "image.npy", "text=classes.npy", *SMALL)
    said = capsys.readouterr().out
    assert "40 of the 40 held-out pairs have a row of text that was trained on" in said


def test_report_of_what_cannot_be_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = MMAlign(input_dims={"image": 16, "text": 13}, key_dim=8)
    save_weights(head, "half", "fp16")
    with pytest.raises(ValueError, match=r"half is fp16 itself, off fp32 by \S+ at most"):
        call(monkeypatch, "report", "half", "image.npy", "text.npy")
    save_weights(head, "other", "fp32")
    with pytest.raises(
        ValueError, match=r"text embeddings are .*\[400, 12\]: expected \[400, 13\]"
    ):
        call(monkeypatch, "report", "other", "image.npy", "text.npy")
    save_weights(head.frozen(), "light", "fp32")
    with pytest.raises(ValueError, match="light holds no MM-Align head"):
        call(monkeypatch, "report", "light", "image.npy", "text.npy")
    np.save("none.npy", np.zeros((0, 16), np.float32))
    with pytest.raises(ValueError, match=r"none\.npy is empty"):
        call(monkeypatch, "report", "other", "none.npy", "text.npy")


@pytest.mark.parametrize(
    ("name", "bias", "message"),
    [
        ("image", torch.ones(()), "head holds no MM-Align head: .* a vector"),
        ("type", torch.ones(8), "head: 'type' cannot be the name of a modality"),
        ("1st", torch.ones(8), "head: '1st' cannot be the name of a modality"),
    ],
)
def test_a_head_of_another_kind_is_refused(
    tmp_path: Path, name: str, bias: torch.Tensor, message: str
) -> None:
    tensors = {f"projections.{name}.weight": torch.ones(8, 16), f"projections.{name}.bias": bias}
    with pytest.raises(ValueError, match=message):
        load_head(tmp_path / "head", tensors)


def test_the_command_ends_with_that_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["align", "fit", "none.npy", "text.npy"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemExit, match=r"^error: none.npy cannot be read as .npy \(") as caught:
        explained(main)
    assert "\n" not in str(caught.value)
