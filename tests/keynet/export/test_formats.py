from __future__ import annotations

import hashlib
import importlib.util
import io
import shutil
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from keynet.export.exporter import export_key_model, exporter
from keynet.export.formats import further_formats
from keynet.export.graphs import read_graph
from keynet.export.manifest import (
    HASH,
    MODEL,
    ONNX,
    PT2,
    ArtefactError,
    FileEntry,
    read_manifest,
    write_manifest,
)
from keynet.export.pt2_archive import check_archive
from keynet.export.verify import main
from keynet.preprocess import Preprocessor
from keynet.types import KeyOutput, Request

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
    model: Any,
    preprocessor: Preprocessor,
    golden: list[Request],
) -> Path:
    """An export in every format; copy it to change it."""
    folder = tmp_path_factory.mktemp("formats") / "export"
    exporter(formats=["pt2", "onnx"], weights="float32", kernels=[])(
        model, preprocessor, folder, "tiny", 1, golden
    )
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "export"))


def replaced(folder: Path, name: str, content: bytes) -> None:
    """Put another file there, with the manifest telling its digest."""
    (folder / name).write_bytes(content)
    manifest = read_manifest(folder)
    entry = FileEntry(hashlib.sha256(content).hexdigest(), len(content))
    write_manifest(replace(manifest, files={**manifest.files, name: entry}), folder)


@pytest.mark.parametrize("name", [MODEL, PT2, ONNX])
def test_every_format_gives_the_models_keys(
    name: str, whole: Path, model: Any, preprocessor: Preprocessor, requests: list[Request]
) -> None:
    graph = read_graph(name, (whole / name).read_bytes())
    for count in (1, 2, 7, 64):
        batch = preprocessor(requests[:count])
        with torch.inference_mode():
            wanted = model(*batch[:4])
        got = graph(*batch[:4])
        assert isinstance(got, KeyOutput)
        for mine, theirs in zip(wanted, got, strict=True):
            assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
            assert torch.allclose(mine, theirs, atol=1e-5, equal_nan=True)
        certain = wanted.logits.abs() > 1e-4
        assert torch.equal((wanted.logits >= 0)[certain], (got.logits >= 0)[certain])


def test_the_same_model_gives_the_same_files_without_paths_of_this_machine(
    whole: Path, model: Any, preprocessor: Preprocessor, golden: list[Request], tmp_path: Path
) -> None:
    exporter(formats=["pt2", "onnx"], weights="float32", kernels=[])(
        model, preprocessor, tmp_path / "again", "tiny", 1, golden
    )
    for name in (PT2, ONNX):
        content = (whole / name).read_bytes()
        assert content == (tmp_path / "again" / name).read_bytes()
        assert str(ROOT).encode() not in content and b"site-packages" not in content


def test_verify_runs_every_format(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(whole)]) == 0
    last = capsys.readouterr().out.splitlines()[-3:]
    assert last == [
        f"ok    {n}: 3 golden requests, 0 bits differ on cpu" for n in (MODEL, PT2, ONNX)
    ]


def test_verify_says_what_it_could_not_run(
    whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main([str(whole)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("skip  model.onnx runs on onnxrunt")


def negated(model: Any, field: str) -> nn.Module:
    class Negated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(
            self, images: Tensor, image_mask: Tensor, tokens: Tensor, token_mask: Tensor
        ) -> tuple[Tensor, ...]:
            output = self.model(images, image_mask, tokens, token_mask)
            return tuple(output._replace(**{field: -getattr(output, field)}))

    return Negated().eval()


def swapped(model: Any, preprocessor: Preprocessor, name: str, field: str = "logits") -> bytes:
    batch = preprocessor([Request(text="a b"), Request(text="c")])
    names = [name.rpartition(".")[2]]
    return further_formats(negated(model, field), tuple(batch[:4]), 32, names)[name]


def truncated(model: Any, preprocessor: Preprocessor, name: str) -> bytes:
    content = swapped(model, preprocessor, name)
    return content[: len(content) // 2]


def foreign(model: Any, preprocessor: Preprocessor, name: str) -> bytes:
    return b"no graph at all"


def turned(model: Any, preprocessor: Preprocessor, name: str) -> bytes:
    """Return a graph with the model's codes and other keys."""
    return swapped(model, preprocessor, name, "key")


@pytest.mark.parametrize("name", [PT2, ONNX])
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (swapped, "192 bits differ"), (turned, "another key of golden request 0"),
        (truncated, "is no "), (foreign, "is no "),
    ],
)  # fmt: skip
def test_another_graph_with_a_matching_digest_fails(
    name: str,
    made: Callable[..., bytes],
    reason: str,
    copied: Path,
    model: Any,
    preprocessor: Preprocessor,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replaced(copied, name, made(model, preprocessor, name))
    assert main([str(copied)]) == 1
    failed = [x for x in capsys.readouterr().out.splitlines() if x.startswith("FAIL")]
    assert len(failed) == 1 and name in failed[0] and reason in failed[0]


def with_sample_inputs(sound: bytes) -> bytes:
    program = torch.export.export(nn.Linear(2, 2), (torch.zeros(1, 2),))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def with_entry(name: str) -> Callable[[bytes], bytes]:
    def add(sound: bytes) -> bytes:
        buffer = io.BytesIO(sound)
        with zipfile.ZipFile(buffer, "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a name twice
            archive.writestr(name, b"cos\nsystem\n(S'false'\ntR.")
        return buffer.getvalue()

    return add


def with_code(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return with_payload(old, new, "models/model.json")


def inflated(sound: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/weights/model_weights_config.json", b" " * 1_000_000)
    return buffer.getvalue()


def with_payload(
    old: bytes, new: bytes, file: str = "weights_config.json"
) -> Callable[[bytes], bytes]:
    def change(sound: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(sound)) as before, zipfile.ZipFile(buffer, "w") as after:
            for name in before.namelist():
                content = before.read(name)
                config = name.endswith(file)
                after.writestr(name, content.replace(old, new, 1) if config else content)
        return buffer.getvalue()

    return change


@pytest.mark.parametrize(
    "changed",
    [
        with_sample_inputs,
        with_entry("archive/data/weights/model.pt"),
        with_entry("archive/data/constants/opaque_obj_0"),
        with_entry("archive/data/constants/custom_obj_0"),
        with_entry("archive/data/aotinductor/model/a.so"),
        with_entry("archive/data/weights/weight_0"),
        with_entry("serialized_state_dict.pt"),
        with_payload(b'"use_pickle": false', b'"use_pickle": true'),
        with_payload(b'"path_name": "weight_0"', b'"path_name": "../weight_0"'),
        with_payload(b'"config"', b'"others"'),
        with_payload(b'"config"', b"[" * 200_000),
        with_code(b'"expr_str": "', b"\"expr_str\": \"0*__import__('os').system('true') + "),
        with_code(b'"guards_code": [', b'"guards_code": ["exec(chr(112))", '),
        with_code(b'"target": "torch.ops.aten.', b'"target": "torch._C.'),
        with_code(b"builtins.tuple", b"os.system"),
        inflated,
    ],
)
def test_what_would_be_unpickled_is_refused_unread(
    changed: Callable[[bytes], bytes], whole: Path
) -> None:
    sound = (whole / PT2).read_bytes()
    check_archive(sound)
    assert changed(sound) != sound
    with pytest.raises(ArtefactError, match=r"model\.pt2 (holds|is no archive)"):
        check_archive(changed(sound))


def test_another_hash_matrix_with_a_matching_digest_fails(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load(copied.joinpath(HASH).read_bytes())
    for changed, reason in (
        ({name: -tensor for name, tensor in tensors.items()}, "gives golden request 0 another"),
        ({name: tensor.double() for name, tensor in tensors.items()}, "holds torch.float64"),
        ({name: tensor * torch.inf for name, tensor in tensors.items()}, "not finite"),
    ):
        replaced(copied, HASH, save(changed))
        assert main([str(copied)]) == 1
        assert reason in capsys.readouterr().err


def test_a_graph_that_keeps_the_sample_batch_is_refused(
    model: Any, preprocessor: Preprocessor, golden: list[Request], tmp_path: Path
) -> None:
    class Kept(type(model)):  # type: ignore[misc]
        def forward(self, *batch: Tensor) -> KeyOutput:
            output = super().forward(*batch)
            if batch[0].shape[0] == 3:
                return output._replace(logits=output.logits + 0.0)
            return output

    kept = Kept(300)
    with pytest.raises(ArtefactError, match=r"torch\.export cannot take the model's graph"):
        export_key_model(kept, preprocessor, tmp_path / "e", "tiny", 1, golden, formats=["pt2"])
    assert not (tmp_path / "e").exists()


def test_a_format_that_is_not_there_is_said_before_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match="'tflite'; expected some of pt2, onnx"):
        exporter(formats=["tflite"], weights="float32", kernels=[])
    for given in ("onnx", None, 3):
        with pytest.raises(ValueError, match=r"export\.formats=.*: give a list, such as \[pt2\]"):
            exporter(formats=given, weights="float32", kernels=[])  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"needs onnxruntime; install it with: pip install"):
        exporter(formats=["onnx"], weights="float32", kernels=[])


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_an_export_carries_kernels_and_verify_looks_for_each(
    model: Any,
    preprocessor: Preprocessor,
    golden: list[Request],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "export"
    exporter(formats=[], weights="float32", kernels=[90])(
        model, preprocessor, folder, "tiny", 1, golden
    )
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "ok    kernels: 9 kernels for sm_90a"
    first, second = (folder / f"kernels/sm_90/{name}.ptx" for name in ("finish", "hash_keys"))
    kept = first.read_bytes()
    replaced(folder, "kernels/sm_90/finish.ptx", second.read_bytes())
    assert main([str(folder)]) == 1
    assert "kernels/sm_90/finish.ptx has Entry(name='hash_keys_kernel'" in capsys.readouterr().err
    replaced(folder, "kernels/sm_90/finish.ptx", kept)
    for name, other, reason in (
        ("finish.cubin", "hash_keys.cubin", "has hash_keys_kernel for sm_90; kernels/kernels.json"),
        ("finish.cubin", "finish_scoped.cubin", "is another kernel's, by its digest"),
        ("hash_keys.ptx", "hash_keys_batch.ptx", "is another kernel's, by its digest"),
        ("finish.cubin", "finish.ptx", "finish for sm_90a: no cubin"),
        ("finish.ptx", "finish.cubin", "finish for sm_90a: 'utf-8' codec can't decode"),
    ):
        sound = (folder / "kernels/sm_90" / name).read_bytes()
        replaced(folder, f"kernels/sm_90/{name}", (folder / "kernels/sm_90" / other).read_bytes())
        assert main([str(folder)]) == 1
        assert reason in capsys.readouterr().err
        replaced(folder, f"kernels/sm_90/{name}", sound)
    manifest = read_manifest(folder)
    lost = "kernels/sm_90/finish.cubin"
    files = {name: entry for name, entry in manifest.files.items() if name != lost}
    write_manifest(replace(manifest, files=files), folder)
    assert main([str(folder)]) == 1
    assert f"names {lost}, which files does not list" in capsys.readouterr().err
    write_manifest(manifest, folder)
    index = (folder / "kernels/kernels.json").read_bytes()
    for content, reason in (
        (index.replace(b'"bits": 64', b'"bits": 128', 1), "expected (1, 16, 64)"),
        (index.replace(b'"format": 1', b'"format": 2', 1), "(2, 16, 64); expected"),
        (index.replace(b'"entry": "finish"', b'"entry": "start"', 1), "finish.ptx has Entry"),
        (index.replace(b'"sm_90a"', b'"sm_90"', 1), "hash_keys.ptx has Entry"),
        (b"[]", "does not list kernels"),
    ):
        replaced(folder, "kernels/kernels.json", content)
        assert main([str(folder)]) == 1
        assert reason in capsys.readouterr().err


def test_kernels_for_another_processor_are_refused_before_anything() -> None:
    for given in ([75], ["90"], [90.0], [90, 90], 90, None):
        with pytest.raises(ValueError, match=r"export\.kernels=.*: give a list of some of 80, 90"):
            exporter(formats=[], weights="float32", kernels=given)  # type: ignore[arg-type]
