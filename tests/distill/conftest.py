"""Tiny random checkpoints in the formats in which teachers are published, made once a session.

A fixture ``*_folder`` is a folder; ``changed`` copies one with other weights or another setting.
``make_teacher`` needs no checkpoint.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from distill.clip import ClipTeacher
from distill.internvl import InternVLTeacher
from distill.open_clip import OpenClipTeacher
from distill.siglip import SiglipTeacher
from distill.teacher import TeacherOutput
from keynet.types import Request, Samples

TOWER = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
VISION = {**TOWER, "image_size": 32, "patch_size": 8}
POSITIONS = 16
SEED = 7

Edit = Callable[[dict[str, Tensor]], object]


@pytest.fixture(scope="session")
def pictures() -> list[Image.Image]:
    """Noise of several shapes, the last one grey."""
    noise = np.random.default_rng(5)
    sizes = ((40, 40), (24, 60), (70, 30))
    made = [Image.fromarray(noise.integers(0, 256, (h, w, 3), dtype=np.uint8)) for h, w in sizes]
    return [*made, Image.new("L", (33, 32), 90)]


@pytest.fixture(scope="session")
def samples(pictures: list[Image.Image]) -> list[Request]:
    """Image and text, image alone, text alone, both, image alone."""
    files = []
    for picture in pictures:
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        files.append(buffer.getvalue())
    texts = [
        "what is it",
        "Is it A Cat?",
        "tell me of the very long row of small houses by the sea",
    ]
    return [
        Request(image=files[0], text=texts[0]),
        Request(image=files[1]),
        Request(text=texts[1]),
        Request(image=files[2], text=texts[2]),
        Request(image=files[3]),
    ]


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., str]:
    """Copy a folder: ``changed(folder, weights=edit, settings={"file.json": edit})``."""

    def change(
        folder: str,
        weights: Edit | None = None,
        settings: Mapping[str, Callable[[Any], object]] | None = None,
    ) -> str:
        copy = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder, copy)
        if weights is not None:
            (file,) = copy.glob("*.safetensors")
            tensors = load_file(file)
            weights(tensors)
            save_file(tensors, file, {"format": "pt"})
        for name, edit in (settings or {}).items():
            content = json.loads((copy / name).read_text())
            edit(content)
            (copy / name).write_text(json.dumps(content))
        return str(copy)

    return change


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As HF_HUB_OFFLINE=1: a name that is in no local cache fails at once."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    yield


def _spread(network: nn.Module) -> None:
    """Random weights everywhere, so that no zero bias or zero token hides a mistake."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if not name.endswith(("logit_scale", "logit_bias")):
                weight.add_(torch.randn_like(weight) * 0.1)


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from transformers import (
        CLIPConfig,
        CLIPImageProcessor,
        CLIPModel,
        CLIPProcessor,
        CLIPTokenizer,
    )
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    units = list(bytes_to_unicode().values())
    words = [*units, *(unit + "</w>" for unit in units), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(
        vocab={word: number for number, word in enumerate(words)}, merges=[], model_max_length=77
    )
    ends = {"bos_token_id": 512, "eos_token_id": 513, "pad_token_id": 513}
    text = {**TOWER, **ends, "vocab_size": 514, "max_position_embeddings": POSITIONS}
    torch.manual_seed(SEED)
    network = CLIPModel(CLIPConfig(text_config=text, vision_config=VISION, projection_dim=12))
    _spread(network)
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    folder = str(tmp_path_factory.mktemp("clip"))
    network.save_pretrained(folder)
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def _siglip(folder: str, tokenizer: Any, vocabulary: int) -> str:
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel, SiglipProcessor

    ends = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "projection_size": 16}
    text = {**TOWER, **ends, "vocab_size": vocabulary, "max_position_embeddings": POSITIONS}
    torch.manual_seed(SEED)
    network = SiglipModel(SiglipConfig(text_config=text, vision_config=VISION))
    _spread(network)
    images = SiglipImageProcessor(size={"height": 32, "width": 32})
    network.save_pretrained(folder)
    SiglipProcessor(images, tokenizer).save_pretrained(folder)
    return folder


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ?▁"


@pytest.fixture(scope="session")
def siglip_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its tokenizer is a tokenizer.json; SiglipTokenizer itself needs sentencepiece."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(letter, -3.0) for letter in LETTERS]
    inner = Tokenizer(models.Unigram(pieces, unk_id=2))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="</s>", eos_token="</s>", unk_token="<unk>",
        model_input_names=["input_ids"], model_max_length=64,
    )  # fmt: skip
    folder = str(tmp_path_factory.mktemp("siglip"))
    return _siglip(folder, tokenizer, len(pieces))


@pytest.fixture(scope="session")
def siglip2_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SigLIP 2 at a fixed resolution: a SiglipModel with Gemma's tokenizer, which keeps capitals.

    Source of its settings: the conversion script of transformers (convert_siglip_to_hf.py).
    """
    from transformers import GemmaTokenizer

    words = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *LETTERS]
    tokenizer = GemmaTokenizer(
        vocab={word: number for number, word in enumerate(words)}, merges=[],
        add_bos_token=False, add_eos_token=True, padding_side="right",
        model_input_names=["input_ids"], model_max_length=64,
    )  # fmt: skip
    folder = str(tmp_path_factory.mktemp("siglip2"))
    return _siglip(folder, tokenizer, len(words))


def _internvl() -> Any:
    from transformers import InternVLConfig, InternVLForConditionalGeneration

    vision = {**TOWER, "image_size": [32, 32], "patch_size": [8, 8]}
    text = {
        **TOWER, "model_type": "qwen2", "vocab_size": 40, "num_key_value_heads": 1,
        "max_position_embeddings": 32,
    }  # fmt: skip
    config = InternVLConfig(vision_config=vision, text_config=text, image_token_id=5)
    torch.manual_seed(SEED)
    network = InternVLForConditionalGeneration(config)
    _spread(network)
    return network


def _save_tiles(folder: str) -> None:
    from transformers import GotOcr2ImageProcessor

    images = GotOcr2ImageProcessor(size={"height": 32, "width": 32}, crop_to_patches=True)
    images.save_pretrained(folder)


@pytest.fixture(scope="session")
def internvl_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A whole InternVL, language model included, in the layout of the ``-hf`` repositories."""
    folder = str(tmp_path_factory.mktemp("internvl"))
    _internvl().save_pretrained(folder)
    _save_tiles(folder)
    return folder


@pytest.fixture(scope="session")
def internvl_sharded_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same in several files and an index."""
    folder = str(tmp_path_factory.mktemp("internvl_sharded"))
    _internvl().save_pretrained(folder, max_shard_size="10KB")
    _save_tiles(folder)
    return folder


@pytest.fixture(scope="session")
def internvl_vision_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The vision tower of the same alone."""
    folder = str(tmp_path_factory.mktemp("internvl_vision"))
    _internvl().model.vision_tower.save_pretrained(folder)
    _save_tiles(folder)
    return folder


@pytest.fixture(scope="session")
def sentence_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from transformers import BertConfig, BertModel, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "?"]
    words += [prefix + letter for letter in LETTERS[:26] for prefix in ("", "##")]
    torch.manual_seed(SEED)
    network = BertModel(BertConfig(**TOWER, vocab_size=len(words), max_position_embeddings=32))
    _spread(network)
    folder = str(tmp_path_factory.mktemp("sentence"))
    network.save_pretrained(folder)
    BertTokenizer(vocab={w: n for n, w in enumerate(words)}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def open_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Preprocessing other than open_clip's default, as SigLIP's; its default tokenizer."""
    import open_clip

    vision = {"image_size": 32, "layers": 2, "width": 16, "patch_size": 8, "head_width": 8}
    text = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
    config = {
        "model_cfg": {"embed_dim": 12, "vision_cfg": vision, "text_cfg": text},
        "preprocess_cfg": {
            "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5],
            "interpolation": "bilinear", "resize_mode": "squash",
        },
    }  # fmt: skip
    torch.manual_seed(SEED)
    network = open_clip.CLIP(**config["model_cfg"])
    _spread(network)
    folder = tmp_path_factory.mktemp("open_clip")
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file(network.state_dict(), folder / "open_clip_model.safetensors")
    return str(folder)


class OwnTeacher:
    """A user's own teacher: the members of the protocol, no base class, gradients not turned off.

    Content that ends in the same number has the same latent vector, whatever the modality; the
    embedding is linear in it, ``offset`` aside.
    """

    def __init__(
        self,
        name: str = "own",
        dim: int = 8,
        seed: int = 0,
        modalities: tuple[str, ...] = ("image", "text"),
        latent_dim: int = 8,
        offset: float = 0.0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.name, self.dim, self.modalities = name, dim, modalities
        self.temperature = 0.1
        self.weights = nn.ParameterDict(
            {m: nn.Parameter(torch.randn(dim, latent_dim, generator=generator)) for m in modalities}
        )
        self.offset = offset
        self.latent_dim = latent_dim
        self.asked: list[str] = []  # all that it was given, in order

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(str(self.offset).encode())
        for modality in self.modalities:
            digest.update(self.weights[modality].detach().numpy().tobytes())
        return digest.hexdigest()[:16]

    def to(self, device: torch.device | str, dtype: torch.dtype) -> None:
        """Nothing to move."""

    def encode(self, requests: Sequence[Request]) -> TeacherOutput:
        found: dict[str, Tensor | None] = {"image": None, "text": None}
        for modality in self.modalities:
            rows = []
            for request in requests:
                content = getattr(request, modality)
                if content is None:
                    rows.append(torch.zeros(self.dim))
                    continue
                self.asked.append(str(content))
                number = int(re.findall(r"\d+", str(content))[-1])
                generator = torch.Generator().manual_seed(number)
                latent = torch.randn(self.latent_dim, generator=generator)
                rows.append(self.weights[modality] @ latent + self.offset)
            found[modality] = torch.stack(rows) if rows else torch.zeros(0, self.dim)
        return TeacherOutput(**found)


@pytest.fixture(scope="session")
def make_teacher() -> type[OwnTeacher]:
    return OwnTeacher


@pytest.fixture(scope="session")
def make_samples() -> Callable[..., Samples]:
    """``count`` pictures, a caption each, then as many questions."""

    def make(count: int = 12) -> Samples:
        pictures = [f"picture {n}".encode() for n in range(count)]
        texts = [f"{word} {n}" for word in ("caption", "question") for n in range(count)]
        pairs = torch.arange(count)[:, None].repeat(1, 2)
        held_out = [
            Request(image=f"picture {n}".encode(), text=f"caption {n}", entity=str(n))
            for n in range(1000, 1010)
        ]
        return Samples(pictures, texts, pairs, lambda: held_out)

    return make


@pytest.fixture(scope="session")
def pictured() -> Samples:
    """As ``make_samples``, of pictures that decode."""
    noise = np.random.default_rng(0)
    pictures = []
    for _ in range(12):
        buffer = io.BytesIO()
        Image.fromarray(noise.integers(0, 256, (36, 32, 3), dtype=np.uint8)).save(buffer, "PNG")
        pictures.append(buffer.getvalue())
    texts = [f"{word} {letter}" for word in ("a", "what is") for letter in "abcdefghijkl"]
    pairs = torch.arange(12)[:, None].repeat(1, 2)
    return Samples(pictures, texts, pairs, list)


@pytest.fixture
def load_teacher(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Load one of the small checkpoints through its real loader, by kind."""

    def load(kind: str) -> Any:
        folder = request.getfixturevalue(f"{kind}_folder")
        if kind == "open_clip":
            return OpenClipTeacher(name=kind, model=f"local-dir:{folder}")
        loader = {"clip": ClipTeacher, "internvl": InternVLTeacher}.get(kind, SiglipTeacher)
        return loader(name=kind, path=folder)

    return load
