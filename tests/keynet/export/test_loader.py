from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from keynet.export.exporter import export_key_model
from keynet.export.loader import load_key_model
from keynet.export.manifest import ArtefactError, read_manifest
from keynet.preprocess import Preprocessor
from keynet.types import Key, Request, RequestError


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    shutil.copytree(exported, tmp_path / "export")
    return tmp_path / "export"


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Replace a file and its hash, as a foreign tool would."""
    (folder / name).write_bytes(data)
    entry = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    edit(folder, lambda content: content["files"].update({name: entry}))


def test_a_key_says_where_it_belongs(exported: Path, golden: list[Request]) -> None:
    encoder = load_key_model(exported)
    key = encoder.encode(golden[0])
    stored = read_manifest(exported).golden[0]
    assert isinstance(key, Key)
    assert key.space == encoder.space == read_manifest(exported).key_space
    assert key.code.tobytes().hex() == stored.code
    assert np.allclose(key.vector, stored.key, atol=1e-6)
    assert abs(np.linalg.norm(key.vector) - 1) < 1e-6
    assert key.alignment == pytest.approx(stored.alignment, abs=1e-6)
    assert str(key) == f"kn1:{key.space.fingerprint}:{key.scope_digest}:{stored.code}"
    assert encoder.encode(golden[2]).alignment is None
    assert encoder.golden_flips == 0
    assert encoder.thresholds == ()


def test_bits_are_packed_most_significant_first(exported: Path, golden: list[Request]) -> None:
    encoder = load_key_model(exported)
    weight, bias = encoder.hash_matrix
    key = encoder.encode(golden[0])
    logits = weight.numpy() @ key.vector + bias.numpy()
    assert [int(key.code[0]) >> (7 - i) & 1 for i in range(8)] == [int(x >= 0) for x in logits[:8]]


def test_batch_size_and_company_do_not_change_a_key(
    exported: Path, requests: list[Request]
) -> None:
    encoder = load_key_model(exported)
    vectors, codes, alignment = encoder.encode_arrays(requests, 64)
    assert vectors.shape == (70, 16)
    assert vectors.dtype == np.float32
    assert codes.shape == (70, 8)
    assert codes.dtype == np.uint8
    for size in (1, 7):
        other_vectors, other_codes, other_alignment = encoder.encode_arrays(requests, size)
        assert np.abs(vectors - other_vectors).max() < 1e-6
        assert (codes == other_codes).all()
        assert np.allclose(alignment, other_alignment, atol=1e-6, equal_nan=True)
    keys = encoder.encode(requests)
    assert [k.code.tobytes() for k in keys] == [c.tobytes() for c in codes]
    assert len({k.scope_digest for k in keys}) == 3  # image + text, image, text


def test_no_requests_are_no_keys(exported: Path) -> None:
    encoder = load_key_model(exported)
    assert encoder.encode([]) == []
    assert encoder.encode_arrays([])[0].shape == (0, 16)


def test_modalities_are_unit_rows_and_zero_where_absent(
    exported: Path, requests: list[Request]
) -> None:
    encoder = load_key_model(exported)
    image, text = encoder.encode_modalities(requests)
    assert image.shape == text.shape == (70, 16)
    assert image.dtype == text.dtype == np.float32
    for rows, present in (
        (image, [r.image is not None for r in requests]),
        (text, [r.text is not None for r in requests]),
    ):
        assert 10 < sum(present) < 70
        assert np.allclose(np.linalg.norm(rows, axis=1), present, atol=1e-5)
    # Their cosine is the alignment, and a modality alone has the vector that it has in company.
    alignment = encoder.encode_arrays(requests)[2]
    both = ~np.isnan(alignment)
    assert 10 < both.sum() < 70
    assert np.allclose((image * text).sum(1)[both], alignment[both], atol=1e-5)
    alone = [Request(text=r.text) if r.text is not None else r for r in requests]
    assert np.allclose(encoder.encode_modalities(alone)[1], text, atol=1e-5)
    for size in (1, 7):
        for whole, part in zip(
            (image, text), encoder.encode_modalities(requests, size), strict=True
        ):
            assert np.allclose(part, whole, atol=1e-5)


def test_modalities_of_a_bad_request_are_named_by_position(exported: Path) -> None:
    encoder = load_key_model(exported)
    good = Request(text="is it red")
    with pytest.raises(RequestError, match=r"^request 3: text is empty"):
        encoder.encode_modalities([good] * 3 + [Request(text="")], batch_size=2)


def test_the_scope_is_in_the_key(exported: Path) -> None:
    encoder = load_key_model(exported)
    keys = encoder.encode(
        [Request(text="is it red", scope=s) for s in ({}, {"a": 1}, {"a": 2}, {"a": 1})]
    )
    digests = [k.scope_digest for k in keys]
    assert digests[1] == digests[3]
    assert len(set(digests)) == 3


def test_bad_requests_are_named_by_position_across_batches(exported: Path) -> None:
    encoder = load_key_model(exported)
    good = Request(text="is it red")
    with pytest.raises(RequestError, match=r"^request 5: text is empty"):
        encoder.encode([good] * 5 + [Request(text="")], batch_size=2)
    with pytest.raises(RequestError, match=r"^request 1: scope\['x'\] is nan"):
        encoder.encode([good, Request(text="a", scope={"x": float("nan")})])
    with pytest.raises(RequestError, match="has 100000 tokens and the model takes 32"):
        encoder.encode(Request(text="xy" * 50_000))
    with pytest.raises(ValueError, match="batch_size is 0"):
        encoder.encode([good], batch_size=0)


def test_long_texts_that_differ_anywhere_never_share_a_key(
    tmp_path: Path, model: Any, tokenizer: Tokenizer, golden: list[Request]
) -> None:
    fold = Preprocessor(16, tokenizer, 32, long_text="fold")
    export_key_model(model, fold, tmp_path / "e", "tiny", 1, golden)
    encoder = load_key_model(tmp_path / "e")
    long = "xy" * 50_000
    texts = [long, long[:-1] + "z", "z" + long[1:], long[:50_000] + "z" + long[50_001:], long]
    keys = encoder.encode([Request(text=t) for t in texts])
    assert len({str(k) for k in keys}) == 4
    assert len({k.scope_digest for k in keys}) == 4
    assert str(keys[0]) == str(keys[4])
    assert encoder.preprocessor.folded == 5


@pytest.mark.parametrize(
    "name", ["model.ts.pt", "tokenizer.json", "hash.safetensors", "golden/0.png"]
)
def test_every_file_is_verified(name: str, copied: Path) -> None:
    path, content = copied / name, (copied / name).read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtefactError, match=f"{name} was altered"):
        load_key_model(copied)
    path.write_bytes(content[:-1])
    with pytest.raises(ArtefactError, match=f"{name} has .* bytes and the manifest says"):
        load_key_model(copied)
    path.unlink()
    with pytest.raises(ArtefactError, match=f"{name} is missing"):
        load_key_model(copied)


def test_links_out_of_the_export_are_refused(copied: Path, tmp_path: Path) -> None:
    (copied / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    (copied / "tokenizer.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ArtefactError, match="leads out of the export"):
        load_key_model(copied)


def test_another_golden_code_says_how_many_bits_flip(copied: Path) -> None:
    code = bytes.fromhex(read_manifest(copied).golden[1].code)
    other = (bytes([code[0] ^ 0b101]) + code[1:]).hex()
    edit(copied, lambda content: content["golden"][1].update(code=other))
    with pytest.raises(ArtefactError, match="golden request 1 gets another key here: 2 of 64 bits"):
        load_key_model(copied)


def test_another_golden_key_is_refused_and_names_the_versions(copied: Path) -> None:
    def change(content: dict[str, Any]) -> None:
        content["golden"][0]["key"][0] += 0.01
        content["created_by"]["pillow"] = "1.0"

    edit(copied, change)
    with pytest.raises(ArtefactError, match=r"0 of 64 bits flip.*made with pillow 1\.0 \(here"):
        load_key_model(copied)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("model.ts.pt", b"no archive", "is no TorchScript that loads here"),
        ("model.ts.pt", b"\x80\x04\x95pickle", "is no TorchScript that loads here"),
        ("tokenizer.json", b"{}", "tokenizer.json is unusable"),
        ("tokenizer.json", b"\xff", "tokenizer.json is unusable"),
        ("hash.safetensors", b"x", "is no safetensors file"),
        ("golden/0.png", b"x", "golden request 0: image is not an image"),
    ],
)
def test_foreign_files_are_refused(name: str, data: bytes, message: str, copied: Path) -> None:
    replace_file(copied, name, data)
    with pytest.raises(ArtefactError, match=message) as caught:
        load_key_model(copied)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_torchscript_that_is_no_key_model_is_refused(copied: Path) -> None:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), buffer)
    replace_file(copied, "model.ts.pt", buffer.getvalue())
    with pytest.raises(ArtefactError, match="does not run as a key model") as caught:
        load_key_model(copied)
    assert "\n" not in str(caught.value)


def test_a_plain_torch_checkpoint_is_refused(copied: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"state_dict": {}}, buffer)
    assert zipfile.is_zipfile(buffer)
    replace_file(copied, "model.ts.pt", buffer.getvalue())
    with pytest.raises(ArtefactError, match="is no TorchScript that loads here"):
        load_key_model(copied)


@pytest.mark.parametrize("size", [0, 9460, 10**9, 10**30])
def test_settings_out_of_range_are_refused(copied: Path, size: int) -> None:
    edit(copied, lambda content: content["preprocessing"].update(image_size=size))
    with pytest.raises(ArtefactError, match=f"image_size is {size}; "):
        load_key_model(copied)


@pytest.mark.parametrize("name", ["model.ts.pt", "hash.safetensors", "manifest.json"])
def test_files_larger_than_memory_are_one_line(name: str, copied: Path) -> None:
    huge = 1 << 42  # with holes, so that it takes no disk
    os.truncate(copied / name, huge)
    if name == "manifest.json":
        with pytest.raises(ArtefactError, match="does not fit into memory"):
            load_key_model(copied)
        return
    with pytest.raises(ArtefactError, match=f"{name} has 4,398,046,511,104 bytes and the manif"):
        load_key_model(copied)
    edit(copied, lambda content: content["files"][name].update(bytes=huge))
    with pytest.raises(ArtefactError, match="104 bytes, which do not fit into memory; load"):
        load_key_model(copied)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 90)
        + b'{"weight":{"dtype":"F32","shape":[1099511627776,16],'
        b'"data_offsets":[0,70368744177664]}}'.ljust(90),
    ],
)
def test_a_header_that_promises_more_than_there_is_is_refused(content: bytes, copied: Path) -> None:
    replace_file(copied, "hash.safetensors", content)
    with pytest.raises(ArtefactError, match="is no safetensors file") as caught:
        load_key_model(copied)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there(device: str, exported: Path) -> None:
    with pytest.raises(ValueError, match=f"device '{device}' is not available here") as caught:
        load_key_model(exported, device)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_golden_keys(exported: Path, requests: list[Request]) -> None:
    on_gpu = load_key_model(exported, "cuda").encode_arrays(requests)
    on_cpu = load_key_model(exported).encode_arrays(requests)
    assert np.abs(on_gpu[0] - on_cpu[0]).max() < 1e-2
    assert np.unpackbits(on_gpu[1] ^ on_cpu[1]).mean() < 1 / 64


def test_another_process_gets_the_same_keys(exported: Path) -> None:
    program = (
        "import sys; from keynet import Request, load_key_model; "
        "print(load_key_model(sys.argv[1]).encode(Request(text='is it red')))"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(exported)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    assert run.stdout.strip() == str(load_key_model(exported).encode(Request(text="is it red")))
