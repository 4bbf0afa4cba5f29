"""open_clip's models: the network called by hand; nothing random, guessed or ignored."""

from __future__ import annotations

import importlib
import json
import logging
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from PIL import Image

import distill
from distill.open_clip import OpenClipTeacher
from distill.teacher import TeacherError
from keynet.models.checkpoint import require
from keynet.types import Request


@pytest.fixture(scope="module")
def teacher(open_clip_folder: str) -> OpenClipTeacher:
    return load(open_clip_folder)


def load(folder: str) -> OpenClipTeacher:
    return OpenClipTeacher(name="t", model=f"local-dir:{folder}")


def refused(**options: Any) -> str:
    with pytest.raises(TeacherError) as caught:
        OpenClipTeacher(name="t", **options)
    message = str(caught.value)
    assert message.startswith("teacher t: ") and "\n" not in message and len(message) < 700
    return message


def test_pictures_and_texts(
    teacher: OpenClipTeacher,
    open_clip_folder: str,
    pictures: list[Image.Image],
    samples: list[Request],
) -> None:
    network, transform = open_clip.create_model_from_pretrained(f"local-dir:{open_clip_folder}")
    tokens = open_clip.tokenize([samples[row].text for row in (0, 2, 3)], context_length=16)
    with torch.no_grad():
        images = network.eval().encode_image(torch.stack([transform(p) for p in pictures]))
        texts = network.encode_text(tokens)
    found = teacher.encode(samples)
    torch.testing.assert_close(found.image[[0, 1, 3, 4]], images, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.text[[0, 2, 3]], texts, rtol=1e-4, atol=1e-5)
    assert torch.equal(found.image[2], torch.zeros(12))
    assert torch.equal(found.text[[1, 4]], torch.zeros(2, 12))


def test_its_own_preprocessing(teacher: OpenClipTeacher) -> None:
    """Squashed, and grey 128 is near 0: neither is open_clip's default."""
    picture = Image.new("RGB", (64, 32), (128, 128, 128))
    picture.paste((255, 0, 0), (0, 0, 8, 32))  # a centre crop would lose this border
    pixels = teacher.pixels(picture)
    assert pixels.shape == (3, 32, 32)
    assert torch.equal(pixels[:, 0, 0], torch.tensor([1.0, -1, -1]))
    assert pixels[:, 16, 24].abs().max() < 0.005


def test_width_modalities_and_temperature(
    teacher: OpenClipTeacher, open_clip_folder: str, changed: Callable[..., str]
) -> None:
    assert (teacher.dim, teacher.modalities) == (12, ("image", "text"))
    path = changed(open_clip_folder, weights=lambda t: t["logit_scale"].fill_(math.log(50)))
    assert load(path).temperature == pytest.approx(0.02)


def test_bfloat16_is_close_and_keeps_the_fingerprint(
    open_clip_folder: str, samples: list[Request]
) -> None:
    teacher = load(open_clip_folder)
    before, fingerprint = teacher.encode(samples), teacher.fingerprint
    teacher.to("cpu", torch.bfloat16)
    after = teacher.encode(samples)
    assert teacher.fingerprint == fingerprint
    for exact, rough in zip(before, after, strict=True):
        assert not torch.equal(exact, rough)
        cosines = torch.cosine_similarity(exact, rough)[exact.abs().sum(1) > 0]
        assert cosines.min() > 0.999


def test_fingerprint(
    teacher: OpenClipTeacher, open_clip_folder: str, changed: Callable[..., str]
) -> None:
    def set_in(part: str, **values: Any) -> dict[str, Any]:
        return {"open_clip_config.json": lambda c: c[part].update(values)}

    def clean(config: dict[str, Any]) -> None:
        config["model_cfg"]["text_cfg"]["tokenizer_kwargs"] = {"clean": "canonicalize"}

    same = load(changed(open_clip_folder)).fingerprint
    others = [
        changed(open_clip_folder, weights=lambda t: t["visual.proj"][0, 0].add_(0.01)),
        changed(open_clip_folder, settings=set_in("preprocess_cfg", mean=[0.4, 0.5, 0.5])),
        changed(open_clip_folder, settings=set_in("preprocess_cfg", resize_mode="longest")),
        changed(open_clip_folder, settings={"open_clip_config.json": clean}),
    ]
    assert same == teacher.fingerprint
    assert len({same, *(load(path).fingerprint for path in others)}) == 5


def test_a_tokenizer_of_transformers_in_the_folder(
    open_clip_folder: str, sentence_folder: str, changed: Callable[..., str]
) -> None:
    def name(config: dict[str, Any]) -> None:
        config["model_cfg"]["text_cfg"]["hf_tokenizer_name"] = "some/tokenizer"

    path = Path(changed(open_clip_folder, settings={"open_clip_config.json": name}))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (path / file).write_bytes((Path(sentence_folder) / file).read_bytes())
    first = load(str(path))
    assert first.tokenise(["a cat"])["tokens"].shape == (1, 16)
    assert first.preprocessing["text"]["class"] == "BertTokenizer"
    first.encode([Request(text="a longer text than this")])
    assert load(str(path)).preprocessing == first.preprocessing

    content = json.loads((path / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (path / "tokenizer.json").write_text(json.dumps(content))
    assert load(str(path)).fingerprint != first.fingerprint


def test_a_folder_that_is_absent_or_has_no_config(tmp_path: Path) -> None:
    assert "cannot be read" in refused(model=f"local-dir:{tmp_path / 'absent'}")
    assert "config file missing" in refused(model=f"local-dir:{tmp_path}")


def test_no_weights(
    open_clip_folder: str, changed: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    path = changed(open_clip_folder)
    (Path(path) / "open_clip_model.safetensors").unlink()
    with caplog.at_level(logging.CRITICAL):
        assert "Required pretrained weights" in refused(model=f"local-dir:{path}")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (lambda t: t.pop("text_projection"), 'Missing key(s) in state_dict: "text_projection"'),
        (lambda t: t.update(other=torch.zeros(1)), 'Unexpected key(s) in state_dict: "other"'),
        (lambda t: t.update(ln_final_=t.pop("ln_final.weight")), "Missing key(s)"),
        (lambda t: t.update(text_projection=torch.zeros(2, 2)), "size mismatch"),
        (lambda t: t["visual.proj"].fill_(float("nan")), "weight visual.proj is not finite"),
    ],
)
def test_weights_of_another_model_or_damaged(
    open_clip_folder: str, changed: Callable[..., str], edit: Any, expected: str
) -> None:
    assert expected in refused(model=f"local-dir:{changed(open_clip_folder, weights=edit)}")


def test_weights_that_are_a_pointer_of_git_lfs(
    open_clip_folder: str, changed: Callable[..., str]
) -> None:
    path = changed(open_clip_folder)
    (Path(path) / "open_clip_model.safetensors").write_text("version https://git-lfs.github.com/\n")
    assert "cannot be read" in refused(model=f"local-dir:{path}")


def test_a_bare_file_is_refused(open_clip_folder: str) -> None:
    file = f"{open_clip_folder}/open_clip_model.safetensors"
    message = refused(model="ViT-B-32", pretrained=file)
    assert "says nothing of its preprocessing" in message and "local-dir:FOLDER" in message


def test_names_that_open_clip_does_not_know() -> None:
    assert "knows no model ViT-Z-32" in refused(model="ViT-Z-32", pretrained="openai")
    assert "pretrained=None, expected a tag of ViT-B-32: openai," in refused(model="ViT-B-32")
    message = refused(model="ViT-B-32", pretrained="nothing")
    assert "pretrained=nothing, expected a tag" in message


def test_pretrained_beside_a_folder_is_refused(open_clip_folder: str) -> None:
    message = refused(model=f"local-dir:{open_clip_folder}", pretrained="openai")
    assert "leave pretrained out" in message


@pytest.mark.usefixtures("offline")
def test_the_hub_without_the_network() -> None:
    assert "cannot be read" in refused(model="hf-hub:nobody/nothing")


def test_weights_of_another_activation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("open_clip.factory.download_pretrained", lambda *_, **__: "unread")
    message = refused(model="ViT-B-32", pretrained="openai")
    assert "QuickGELU mismatch" in message and "model=ViT-B-32-quickgelu" in message


def test_files_named_as_the_packages_they_import() -> None:
    """With the repository root on the path, as here and where Hydra finds ``_target_``."""
    root = Path(distill.__path__[0])
    assert str(root.parent) in {str(Path(folder).resolve()) for folder in sys.path}
    for name in ("open_clip", "timm"):
        package, ours = require(name), importlib.import_module(f"distill.{name}")
        assert package is not ours and Path(ours.__file__).parent == root
        assert root not in Path(package.__file__).parents
