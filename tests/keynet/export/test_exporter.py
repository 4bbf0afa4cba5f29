from __future__ import annotations

import copy
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from keynet.export import exporter
from keynet.export.exporter import export_key_model, fingerprint
from keynet.export.loader import load_key_model
from keynet.export.manifest import (
    ArtefactError,
    Parity,
    StoredThreshold,
    read_manifest,
    set_parity,
    set_thresholds,
)
from keynet.preprocess import Preprocessor
from keynet.types import KeyOutput, Request, RequestError


def listing(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def with_forward(model: nn.Module, forward: Any) -> nn.Module:
    """A copy of the model whose output passes through ``forward(output, batch)``."""
    changed = copy.deepcopy(model)
    original = type(model).forward

    def wrapped(self: nn.Module, *batch: Tensor) -> KeyOutput:
        return forward(original(self, *batch), batch)  # type: ignore[no-any-return]

    changed.__class__ = type("Changed", (type(model),), {"forward": wrapped})
    return changed


def test_an_export_holds_the_listed_files_and_nothing_else(exported: Path) -> None:
    assert listing(exported) == [
        "golden", "golden/0.png", "golden/1.png", "hash.safetensors", "manifest.json",
        "model.ts.pt", "tokenizer.json",
    ]  # fmt: skip
    files = read_manifest(exported).files
    assert {*files, "golden", "manifest.json"} == set(listing(exported))
    assert listing(exported.parent)[0] == "export"


def test_keys_and_codes_are_the_models(
    exported: Path, model: Any, preprocessor: Preprocessor, requests: list[Request]
) -> None:
    vectors, codes, alignment = load_key_model(exported).encode_arrays(requests)
    with torch.no_grad():
        wanted = model.eval()(*preprocessor(requests)[:4])
    assert np.abs(vectors - wanted.key.numpy()).max() < 1e-6
    assert (codes == np.packbits((wanted.logits >= 0).numpy(), axis=1)).all()
    assert np.allclose(alignment, wanted.alignment.numpy(), atol=1e-6, equal_nan=True)


def test_the_hash_matrix_gives_the_codes(exported: Path, requests: list[Request]) -> None:
    encoder = load_key_model(exported)
    tensors = load_file(exported / "hash.safetensors")
    vectors, codes, _ = encoder.encode_arrays(requests)
    logits = vectors @ tensors["weight"].numpy().T + tensors["bias"].numpy()
    assert (np.packbits(logits >= 0, axis=1) == codes).all()


def test_the_artefact_names_no_path_of_this_machine(exported: Path) -> None:
    here = str(Path(__file__).parents[3]).encode()
    with zipfile.ZipFile(exported / "model.ts.pt") as archive:
        contents = [archive.read(name) for name in archive.namelist()]
        assert not [name for name in archive.namelist() if name.endswith(".debug_pkl")]
    contents += [p.read_bytes() for p in exported.rglob("*") if p.is_file()]
    assert not any(here in content for content in contents)


def test_the_same_model_gives_the_same_key_space_and_golden_keys(
    exported: Path, tmp_path: Path, model: Any, preprocessor: Preprocessor, golden: list[Request]
) -> None:
    again = export_key_model(model, preprocessor, tmp_path / "e", "tiny", 1, golden)
    first = read_manifest(exported)
    assert (again.key_space, again.golden) == (first.key_space, first.golden)
    for name in ("hash.safetensors", "tokenizer.json"):
        assert again.files[name] == first.files[name]


def test_the_model_is_left_as_it_was(
    tmp_path: Path, model: Any, preprocessor: Preprocessor, golden: list[Request]
) -> None:
    mine = copy.deepcopy(model).train()
    before = {k: v.clone() for k, v in mine.state_dict().items()}
    export_key_model(mine, preprocessor, tmp_path / "e", "tiny", 1, golden)
    assert mine.training
    assert all(p.requires_grad for p in mine.parameters())
    assert all(torch.equal(v, before[k]) for k, v in mine.state_dict().items())


def test_the_fingerprint_changes_with_weights_settings_and_vocabulary(
    model: Any, preprocessor: Preprocessor, tokenizer: Tokenizer
) -> None:
    first = fingerprint(model, preprocessor)
    assert first == fingerprint(copy.deepcopy(model), Preprocessor(16, tokenizer, 32))
    assert len(first) == 16
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.mix.bias[0] += 1e-6
    larger = Tokenizer.from_str(tokenizer.to_str())
    larger.add_tokens(["zebra"])
    assert len(
        {
            first,
            fingerprint(other, preprocessor),
            fingerprint(model, Preprocessor(24, tokenizer, 32)),
            fingerprint(model, Preprocessor(16, tokenizer, 32, long_text="fold")),
            fingerprint(model, Preprocessor(16, larger, 32)),
        }
    ) == 5  # fmt: skip


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("forward", "message"),
    [
        # A Python number from the sample batch: right there, wrong at any other size.
        (
            lambda o, b: o._replace(key=torch.roll(o.key, int(b[0].shape[0]), 1)),
            "keys of model.ts.pt differ",
        ),
        (
            lambda o, b: o._replace(logits=o.logits * (1 - 2 * int(b[2].shape[1] != 8))),
            "bits of the codes of model.ts.pt",
        ),
        (lambda o, b: o._replace(logits=o.logits + 1), "logits differ from W key"),
        (lambda o, b: o._replace(key=o.key * 2, logits=o.logits * 2), "differ|norms"),
        (lambda o, b: o._replace(key=o.key * torch.nan), "differ by nan"),
    ],
)
def test_a_trace_that_is_not_the_model_is_not_published(
    forward: Any,
    message: str,
    tmp_path: Path,
    model: Any,
    preprocessor: Preprocessor,
    golden: list[Request],
) -> None:
    with pytest.raises(ArtefactError, match=message):
        export_key_model(
            with_forward(model, forward), preprocessor, tmp_path / "e", "tiny", 1, golden
        )
    assert listing(tmp_path) == []


def test_an_interrupted_export_leaves_nothing(
    tmp_path: Path,
    model: Any,
    preprocessor: Preprocessor,
    golden: list[Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter, "load_key_model", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_key_model(model, preprocessor, tmp_path / "e", "tiny", 1, golden)
    assert listing(tmp_path) == []


def test_an_export_is_replaced_only_by_a_complete_one(
    tmp_path: Path,
    model: Any,
    preprocessor: Preprocessor,
    golden: list[Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "e"
    export_key_model(model, preprocessor, folder, "tiny", 1, golden)
    with monkeypatch.context() as patch:
        patch.setattr(exporter, "write_manifest", _full_disk)
        with pytest.raises(ArtefactError, match="cannot be written"):
            export_key_model(model, preprocessor, folder, "tiny", 2, golden)
    assert load_key_model(folder).space.version == 1
    export_key_model(model, preprocessor, folder, "tiny", 2, golden)
    assert load_key_model(folder).space.version == 2
    assert [p.name for p in tmp_path.iterdir()] == ["e"]


def test_thresholds_stay_where_the_key_space_does(
    tmp_path: Path,
    model: Any,
    preprocessor: Preprocessor,
    golden: list[Request],
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = (model, preprocessor, tmp_path / "e", "tiny", 1, golden)
    space = export_key_model(*given).key_space.fingerprint
    threshold = StoredThreshold(
        "fixed_store", "text", None, 0.9, 0.01, 0.95, "emoji/calibration", 900, space
    )
    set_thresholds(tmp_path / "e", [threshold])
    export_key_model(*given, formats=["pt2"])
    assert load_key_model(tmp_path / "e").thresholds == (threshold,)
    assert not [record for record in caplog.records if record.name.startswith("keynet")]
    parity = Parity("model.pt2", 9, 0.0, 0, 0.0, 0, 0.0)
    set_parity(tmp_path / "e", [parity])
    other = export_key_model(*given, weights="int8").key_space.fingerprint
    assert read_manifest(tmp_path / "e").thresholds == []
    assert f"its 1 thresholds are of key space {space} and do not hold in {other}" in caplog.text
    assert "parity was measured on the files before" in caplog.text


def test_other_peoples_files_are_not_replaced(
    tmp_path: Path, model: Any, preprocessor: Preprocessor, golden: list[Request]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name, message in [("mine", "no export"), ("file", "is a file"), ("link", "is a link")]:
        with pytest.raises(ArtefactError, match=message):
            export_key_model(model, preprocessor, tmp_path / name, "tiny", 1, golden)
    with pytest.raises(ArtefactError, match="cannot be written"):
        export_key_model(model, preprocessor, tmp_path / "file" / "e", "tiny", 1, golden)
    assert listing(tmp_path) == ["file", "link", "mine", "mine/thesis.tex"]


def test_bad_golden_requests_and_models(
    tmp_path: Path, model: Any, preprocessor: Preprocessor, golden: list[Request]
) -> None:
    with pytest.raises(ArtefactError, match="golden is empty"):
        export_key_model(model, preprocessor, tmp_path / "e", "tiny", 1, [])
    with pytest.raises(RequestError, match="request 1: text is empty"):
        export_key_model(
            model, preprocessor, tmp_path / "e", "tiny", 1, [golden[0], Request(text=" ")]
        )
    with pytest.raises(TypeError, match=r"Linear\.key_dim is None"):
        export_key_model(nn.Linear(2, 2), preprocessor, tmp_path / "e", "tiny", 1, golden)
    odd = copy.deepcopy(model)
    odd.num_bits = None
    with pytest.raises(TypeError, match="num_bits is None"):
        export_key_model(odd, preprocessor, tmp_path / "e", "tiny", 1, golden)
    assert listing(tmp_path) == []


def test_golden_requests_near_a_sign_change_are_left_out(
    tmp_path: Path, model: Any, preprocessor: Preprocessor, golden: list[Request]
) -> None:
    near = copy.deepcopy(model).eval()
    with torch.no_grad():
        logits = near(*preprocessor(golden)[:4]).logits
        near.hash.bias[0] -= logits[1, 0]
    manifest = export_key_model(near, preprocessor, tmp_path / "e", "tiny", 1, golden)
    assert [g.text for g in manifest.golden] == [golden[0].text, golden[2].text]
    with pytest.raises(ArtefactError, match="each of 1 golden requests has a logit within"):
        export_key_model(near, preprocessor, tmp_path / "f", "tiny", 1, golden[1:2])


def test_golden_images_keep_their_bytes(
    tmp_path: Path, model: Any, preprocessor: Preprocessor, golden: list[Request]
) -> None:
    (tmp_path / "a.png").write_bytes(golden[0].image)  # type: ignore[arg-type]
    requests = [Request(image=tmp_path / "a.png")]
    export_key_model(model, preprocessor, tmp_path / "e", "tiny", 1, requests)
    assert (tmp_path / "e/golden/0.png").read_bytes() == golden[0].image


def _full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")
