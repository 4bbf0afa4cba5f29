"""What every teacher of transformers refuses, in one line, and what makes its fingerprint."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from distill.clip import ClipTeacher
from distill.internvl import InternVLTeacher
from distill.pretrained import load_network, load_tokenizer, tokenizer_identity
from distill.sentence import SentenceTeacher
from distill.siglip import SiglipTeacher
from distill.teacher import TeacherError
from keynet.models.checkpoint import one_line, require

# Teacher, fixture of its checkpoint, one of its weights by its name in the file.
KINDS = {
    "clip": (ClipTeacher, "clip_folder", "visual_projection.weight"),
    "siglip": (SiglipTeacher, "siglip_folder", "text_model.final_layer_norm.bias"),
    "siglip2": (SiglipTeacher, "siglip2_folder", "vision_model.head.probe"),
    "internvl": (
        InternVLTeacher,
        "internvl_folder",
        "vision_tower.encoder.layer.1.mlp.fc1.weight",
    ),
    "internvl_vision": (InternVLTeacher, "internvl_vision_folder", "embeddings.cls_token"),
    "sentence": (SentenceTeacher, "sentence_folder", "encoder.layer.0.output.dense.weight"),
}


class Kind(SimpleNamespace):
    folder: str
    weight: str

    def load(self, path: str) -> Any:
        return self.teacher(name="t", path=path, **self.options)

    def refused(self, path: str) -> str:
        with pytest.raises(TeacherError) as caught:
            self.load(path)
        message = str(caught.value)
        assert message.startswith("teacher t: ") and "\n" not in message and len(message) < 600
        return message


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    teacher, fixture, weight = KINDS[request.param]
    options = {"max_tokens": 16} if teacher is SentenceTeacher else {}
    folder = request.getfixturevalue(fixture)
    return Kind(teacher=teacher, folder=folder, weight=weight, options=options)


def test_no_such_folder(kind: Kind, tmp_path: Path) -> None:
    assert "is no folder with a config.json" in kind.refused(str(tmp_path / "absent"))


@pytest.mark.usefixtures("offline")
def test_a_hub_name_without_the_network(kind: Kind) -> None:
    message = kind.refused("nobody/nothing")
    assert "nobody/nothing is no folder" in message and "the network" in message


def test_a_folder_without_config(kind: Kind, tmp_path: Path) -> None:
    assert "no config.json with a model_type" in kind.refused(str(tmp_path))


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"sentence"}), indirect=True)
def test_another_architecture(kind: Kind, changed: Callable[..., str]) -> None:
    path = changed(kind.folder, settings={"config.json": lambda c: c.update(model_type="resnet")})
    assert f"{path} is of type resnet, expected" in kind.refused(path)


def test_no_weights(kind: Kind, changed: Callable[..., str]) -> None:
    path = changed(kind.folder)
    (Path(path) / "model.safetensors").unlink()
    assert "weights of" in kind.refused(path)


def test_weights_that_are_a_pointer_of_git_lfs(kind: Kind, changed: Callable[..., str]) -> None:
    path = changed(kind.folder)
    (Path(path) / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "cannot be read" in kind.refused(path)


def test_a_weight_that_is_missing(kind: Kind, changed: Callable[..., str]) -> None:
    path = changed(kind.folder, weights=lambda tensors: tensors.pop(kind.weight))
    assert f"lacks {kind.weight.removeprefix('vision_tower.')}" in kind.refused(path)


def test_a_weight_of_another_shape(kind: Kind, changed: Callable[..., str]) -> None:
    other = torch.zeros(3, 3)
    path = changed(kind.folder, weights=lambda tensors: tensors.update({kind.weight: other}))
    assert "is (3, 3), its config.json says" in kind.refused(path)


def test_a_weight_that_is_not_finite(kind: Kind, changed: Callable[..., str]) -> None:
    path = changed(kind.folder, weights=lambda t: t[kind.weight].view(-1)[0].fill_(float("nan")))
    assert "is not finite" in kind.refused(path)


def test_fingerprint_follows_the_checkpoint(kind: Kind, changed: Callable[..., str]) -> None:
    first = kind.load(kind.folder).fingerprint
    assert first == kind.load(changed(kind.folder)).fingerprint  # of another folder
    path = changed(kind.folder, weights=lambda t: t[kind.weight].view(-1)[0].add_(0.01))
    assert kind.load(path).fingerprint != first


def test_bfloat16_is_close_and_keeps_the_fingerprint(kind: Kind, samples: list[Any]) -> None:
    teacher = kind.load(kind.folder)
    before, fingerprint = teacher.encode(samples), teacher.fingerprint
    teacher.to("cpu", torch.bfloat16)
    after = teacher.encode(samples)
    assert teacher.fingerprint == fingerprint
    for exact, rough in zip(before, after, strict=True):
        if exact is not None:
            assert rough.dtype == torch.float32 and not torch.equal(rough, exact)
            present = exact.abs().sum(1) > 0
            cosines = torch.cosine_similarity(rough, exact)[present]
            assert cosines.min() > 0.999


def test_encoding_twice_gives_the_same_and_keeps_the_fingerprint(
    kind: Kind, samples: list[Any]
) -> None:
    teacher = kind.load(kind.folder)
    first, second = teacher.encode(samples), teacher.encode(samples)
    for one, two in zip(first, second, strict=True):
        assert (one is None and two is None) or torch.equal(one, two)
    assert teacher.fingerprint == kind.load(kind.folder).fingerprint


def test_absent_modalities(kind: Kind, samples: list[Any]) -> None:
    teacher = kind.load(kind.folder)
    found = teacher.encode(samples)
    for modality, rows in zip(("image", "text"), found, strict=True):
        if modality not in teacher.modalities:
            assert rows is None
            continue
        assert rows.shape == (len(samples), teacher.dim) and rows.dtype == torch.float32
        present = torch.tensor([getattr(sample, modality) is not None for sample in samples])
        assert torch.equal(rows.abs().sum(1) > 0, present)


def test_a_single_row_is_that_of_the_batch(kind: Kind, samples: list[Any]) -> None:
    teacher = kind.load(kind.folder)
    batch = teacher.encode(samples)
    for number, sample in enumerate(samples):
        for rows, row in zip(batch, teacher.encode([sample]), strict=True):
            if rows is not None:
                torch.testing.assert_close(rows[number], row[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2", "sentence"], indirect=True)
def test_a_tokenizer_without_its_vocabulary(kind: Kind, changed: Callable[..., str]) -> None:
    path = changed(kind.folder)
    (Path(path) / "tokenizer.json").unlink()
    message = kind.refused(path)
    assert "has no vocabulary" in message or "the tokenizer of" in message


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2", "sentence"], indirect=True)
def test_fingerprint_follows_the_tokenizer(kind: Kind, changed: Callable[..., str]) -> None:
    def edit(content: dict[str, Any]) -> None:
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, dict):
            vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
        else:
            vocabulary[3], vocabulary[4] = vocabulary[4], vocabulary[3]

    path = changed(kind.folder, settings={"tokenizer.json": edit})
    assert kind.load(path).fingerprint != kind.load(kind.folder).fingerprint


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"], indirect=True)
@pytest.mark.parametrize("setting", [{"image_mean": [0.4, 0.5, 0.5]}, {"resample": 0}])
def test_fingerprint_follows_the_image_processor(
    kind: Kind, changed: Callable[..., str], setting: dict[str, Any]
) -> None:
    path = changed(
        kind.folder,
        settings={"processor_config.json": lambda c: c["image_processor"].update(setting)},
    )
    assert kind.load(path).fingerprint != kind.load(kind.folder).fingerprint


@pytest.mark.parametrize("kind", ["clip", "siglip"], indirect=True)
def test_no_image_processor(kind: Kind, changed: Callable[..., str]) -> None:
    path = changed(kind.folder)
    (Path(path) / "processor_config.json").unlink()
    assert "has no image processor that can be read" in kind.refused(path)


def test_a_tokenizer_whose_package_is_missing(
    siglip_folder: str, changed: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object, **__: object) -> None:
        raise ImportError("\nSiglipTokenizer requires the SentencePiece library\nbut it was not")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", absent)
    with pytest.raises(TeacherError, match=r"library but it was not.*pip install sentencepiece"):
        load_tokenizer("t", siglip_folder)


def test_a_tokenizer_of_sentencepiece_is_known_by_its_files() -> None:
    class Pieces:
        pad_token_id, padding_side, truncation_side = 1, "right", "right"

        def __init__(self, content: bytes) -> None:
            self.content = content

        def save_vocabulary(self, folder: str) -> None:
            (Path(folder) / "spiece.model").write_bytes(self.content)

    first = tokenizer_identity(Pieces(b"one"))
    assert first == tokenizer_identity(Pieces(b"one")) != tokenizer_identity(Pieces(b"two"))
    assert first["class"] == "Pieces"
    json.dumps(first)


def test_loading_is_silent_and_leaves_the_logging_as_it_was(
    clip_folder: str, changed: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    path = changed(clip_folder, weights=lambda t: t.pop("visual_projection.weight"))
    with pytest.raises(TeacherError):
        load_network("t", path, transformers.CLIPModel)
    load_network("t", clip_folder, transformers.CLIPModel)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    assert before == (logging.get_verbosity(), logging.is_progress_bar_enabled())


def test_weights_are_float32_whatever_the_file_holds(
    clip_folder: str, changed: Callable[..., str]
) -> None:
    def halve(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({k: t.half() if t.is_floating_point() else t for k, t in tensors.items()})

    path = changed(
        clip_folder, weights=halve, settings={"config.json": lambda c: c.update(dtype="float16")}
    )
    network = load_network("t", path, transformers.CLIPModel)
    assert {p.dtype for p in network.parameters()} == {torch.float32}


def test_a_package_that_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'keynet-cache\[teachers\]'"):
        require("open_clip")


def test_one_line_is_one_line() -> None:
    assert one_line(ValueError("a\n\n  b\tc")) == "a b c"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 500))) == 200
