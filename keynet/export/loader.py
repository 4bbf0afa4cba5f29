"""Load an exported key model and encode requests with it; torch, numpy, pillow and tokenizers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import overload

import numpy as np
import PIL
import tokenizers
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from tokenizers import Tokenizer
from torch import Tensor

from keynet.cache.scope import scope_digest
from keynet.export.graphs import read_torchscript, torchscript
from keynet.export.manifest import (
    HASH,
    MODEL,
    TOKENIZER,
    ArtefactError,
    Golden,
    Manifest,
    StoredThreshold,
    read_manifest,
)
from keynet.pictures import PILLOW_PIXELS
from keynet.preprocess import Preprocessor
from keynet.types import CODE_BITS, Key, KeyOutput, KeySpace, Request, RequestError

BATCH_SIZE, CPU_BATCH_SIZE = 64, 16  # a CPU's caches hold 16: 1.3 times as fast as 64
GOLDEN_TOLERANCE = 1e-4  # a float32 key differs by about 1e-6 between processors
# bf16 flips 0.19 and tf32 0.03 of 256 bits on average; damage flips half of them.
OTHER_DEVICE_FLIPS = 1 / 64
OTHER_DEVICE_TOLERANCE = 2e-2


def load_key_model(folder: str | Path, device: str | torch.device = "cpu") -> KeyEncoder:
    """Return the key model of an export, its files and golden keys verified.

    Args:
        folder: The export: ``manifest.json`` and the files it lists.
        device: Where to encode.

    Raises:
        ArtefactError: When a file is missing, altered or of another kind, or a golden request
            gets another key here.
        ValueError: When the device is not there.
    """
    place = _device(device)
    manifest = read_manifest(folder)
    contents = read_files(folder, manifest)
    encoder = KeyEncoder(
        manifest,
        read_torchscript(contents[MODEL], place),
        _preprocessor(manifest, contents[TOKENIZER]),
        _hash_matrix(contents[HASH], manifest.key_space),
        place,
    )
    try:
        encoder.golden_flips = check_golden(encoder, contents)
    except (RuntimeError, TypeError) as error:  # what a TorchScript of another kind ends in
        reason = str(error).strip().splitlines()[-1]
        raise ArtefactError(f"{MODEL} does not run as a key model ({reason})") from error
    except RequestError as error:
        raise ArtefactError(f"golden {error}") from error
    return encoder


class KeyEncoder:
    """A loaded key model.

    ``space`` says where its keys can be compared, ``thresholds`` what was calibrated for it,
    ``hash_matrix`` is W [K, D] and b [K] of ``logits = W key + b``, ``num_parameters`` counts all
    weights, ``golden_flips`` the golden bits that differ here (0 on a CPU, else loading fails).
    """

    def __init__(
        self,
        manifest: Manifest,
        model: torch.jit.ScriptModule,
        preprocessor: Preprocessor,
        hash_matrix: tuple[Tensor, Tensor],
        device: torch.device,
    ) -> None:
        self.manifest = manifest
        self.preprocessor = preprocessor
        self.hash_matrix = hash_matrix
        self.device = device
        self.golden_flips = 0
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        # Folds BatchNorm into the convolutions: 1.4 times as fast on a CPU, keys within 3e-7.
        with torchscript():
            self._model = torch.jit.freeze(model)

    @property
    def space(self) -> KeySpace:
        """The key space of every key of this model."""
        return self.manifest.key_space

    @property
    def code_lengths(self) -> tuple[int, ...]:
        """Bits of the prefixes that are usable codes; of a code by modality the whole alone."""
        if self.manifest.code_blocks is not None:
            return (self.space.bits,)
        return tuple(bits for bits in CODE_BITS if bits <= self.space.bits)

    @property
    def thresholds(self) -> tuple[StoredThreshold, ...]:
        """The calibrated thresholds that the export carries."""
        return tuple(self.manifest.thresholds)

    @overload
    def encode(self, requests: Request, batch_size: int | None = None) -> Key: ...

    @overload
    def encode(self, requests: Sequence[Request], batch_size: int | None = None) -> list[Key]: ...

    def encode(
        self, requests: Request | Sequence[Request], batch_size: int | None = None
    ) -> Key | list[Key]:
        """Return the key of one request, or of each of several.

        Args:
            requests: One or several.
            batch_size: Requests that pass at once; None takes 16 on a CPU, else 64.

        Raises:
            RequestError: When a request cannot become a key; the message names its position.
        """
        if isinstance(requests, Request):
            return self.encode([requests], batch_size)[0]
        # First, so that a bad scope does not cost a pass of the model.
        digests = [self._scope_digest(i, request) for i, request in enumerate(requests)]
        vectors, codes, alignment = self.encode_arrays(requests, batch_size)
        return [
            Key(
                space=self.space,
                vector=vectors[i].copy(),
                code=codes[i].copy(),
                alignment=None if np.isnan(alignment[i]) else float(alignment[i]),
                scope_digest=digest,
            )
            for i, digest in enumerate(digests)
        ]

    def encode_arrays(
        self, requests: Sequence[Request], batch_size: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return vectors [N, D] float32, codes [N, K/8] uint8, alignment [N] float32 (NaN: none).

        Raises:
            RequestError: When a request cannot become a key; the message names its position.
        """
        count, space = len(requests), self.space
        vectors = np.empty((count, space.dim), dtype=np.float32)
        codes = np.empty((count, space.bits // 8), dtype=np.uint8)
        alignment = np.empty(count, dtype=np.float32)
        for rows, output in self._outputs(requests, batch_size):
            widths = (output.key.shape[-1], output.logits.shape[-1])
            if widths != (space.dim, space.bits):
                raise ArtefactError(
                    f"{MODEL} gives keys and codes {widths} wide; "
                    f"the manifest says {(space.dim, space.bits)}"
                )
            vectors[rows] = output.key.float().cpu().numpy()
            # [B, K] -> [B, K/8], most significant bit first
            codes[rows] = np.packbits((output.logits >= 0).cpu().numpy(), axis=1)
            alignment[rows] = output.alignment.float().cpu().numpy()
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            raise ArtefactError(
                f"the model has no finite key for request {int(finite.argmin())}; "
                "its weights are damaged, export it again"
            )
        return vectors, codes, alignment

    def encode_modalities(
        self, requests: Sequence[Request], batch_size: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the aligned image and text vectors, each [N, C] float32, zero where absent.

        For search from one modality to the other; keys of requests are not in this space.

        Raises:
            RequestError: When a request cannot be encoded; the message names its position.
        """
        outputs = [output for _, output in self._outputs(requests, batch_size)]
        if not outputs:
            return (np.empty((0, self.space.dim), np.float32),) * 2
        image, text = (
            torch.cat([getattr(output, name) for output in outputs]).float().cpu().numpy()
            for name in ("image", "text")
        )
        return image, text

    def _outputs(
        self, requests: Sequence[Request], batch_size: int | None
    ) -> Iterator[tuple[slice, KeyOutput]]:
        if batch_size is None:
            batch_size = CPU_BATCH_SIZE if self.device.type == "cpu" else BATCH_SIZE
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; give a positive number")
        for first in range(0, len(requests), batch_size):
            batch = self.preprocessor(requests[first : first + batch_size], first=first)
            yield slice(first, first + len(batch.images)), self.run(*batch[:4])

    def run(self, images: Tensor, image_mask: Tensor, tokens: Tensor, mask: Tensor) -> KeyOutput:
        """Return what the model makes of a preprocessed batch, on its device."""
        batch = [t.to(self.device) for t in (images, image_mask, tokens, mask)]
        with torch.inference_mode():
            return KeyOutput(*self._model(*batch))

    def _scope_digest(self, position: int, request: Request) -> str:
        try:
            return scope_digest(
                request.scope,
                request.image is not None,
                request.text is not None,
                self.preprocessor.long_text_digest(request.text),
            )
        except ValueError as error:
            raise RequestError(f"request {position}: {error}") from error


def read_files(folder: str | Path, manifest: Manifest) -> dict[str, bytes]:
    """Return the content of every file of the manifest, each checked by size and SHA-256.

    Raises:
        ArtefactError: When one is missing, outside the folder, or altered.
    """
    return {name: read_file(folder, manifest, name) for name in manifest.files}


def read_file(folder: str | Path, manifest: Manifest, name: str) -> bytes:
    """Return the content of one file of the manifest; see ``read_files``."""
    root, entry = Path(folder), manifest.files[name]
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise ArtefactError(f"{path} leads out of the export; replace the link by the file")
    try:
        if (size := path.stat().st_size) != entry.bytes:
            raise ArtefactError(
                f"{path} has {size:,} bytes and the manifest says {entry.bytes:,}; "
                "copy the export again"
            )
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ArtefactError(f"{path} is missing; copy the export again") from error
    except OSError as error:
        raise ArtefactError(f"{path} cannot be read ({error.strerror})") from error
    except MemoryError as error:
        raise ArtefactError(
            f"{path} has {entry.bytes:,} bytes, which do not fit into memory; load the export "
            "where they do, or export the model again"
        ) from error
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise ArtefactError(f"{path} was altered (another SHA-256); copy the export again")
    return content


def golden_requests(golden: Sequence[Golden], contents: Mapping[str, bytes]) -> list[Request]:
    """Return the golden requests as requests."""
    return [
        Request(image=None if g.image is None else contents[g.image], text=g.text) for g in golden
    ]


def check_golden(encoder: KeyEncoder, contents: Mapping[str, bytes]) -> int:
    """Encode the golden requests again and return how many bits differ.

    Raises:
        ArtefactError: When a code or a key differs by more than this device's rounding.
    """
    golden, space = encoder.manifest.golden, encoder.space
    if not golden:
        return 0
    vectors, codes, _ = encoder.encode_arrays(golden_requests(golden, contents))
    weight, bias = (tensor.numpy() for tensor in encoder.hash_matrix)
    hashed = np.packbits(vectors @ weight.T + bias >= 0, axis=1)
    on_cpu = encoder.device.type == "cpu"
    allowed = 0 if on_cpu else int(space.bits * OTHER_DEVICE_FLIPS)
    tolerance = GOLDEN_TOLERANCE if on_cpu else OTHER_DEVICE_TOLERANCE
    total = 0
    for i, (expected, vector, code) in enumerate(zip(golden, vectors, codes, strict=True)):
        wanted = np.frombuffer(bytes.fromhex(expected.code), dtype=np.uint8)
        flips = int(np.unpackbits(wanted ^ code).sum())
        gap = float(np.abs(vector - np.array(expected.key, dtype=np.float32)).max())
        if flips > allowed or gap > tolerance:
            raise ArtefactError(
                f"golden request {i} gets another key here: {flips} of {space.bits} bits flip, "
                f"the vector differs by {gap:.2g}; {_versions(encoder.manifest)}"
            )
        if int(np.bitwise_count(code ^ hashed[i]).sum()) > allowed:
            raise ArtefactError(f"{HASH} gives golden request {i} another code; export again")
        total += flips
    return total


def _versions(manifest: Manifest) -> str:
    """Name what the export was made with and what runs here."""
    made = manifest.created_by
    here = current_versions()
    other = [
        f"{name} {made.get(name, 'unknown')} (here {here[name]})"
        for name in here
        if made.get(name) != here[name]
    ]
    if not other:
        return "export the model again"
    return "it was made with " + ", ".join(other) + "; install those or export again"


def current_versions() -> dict[str, str]:
    """Return the versions of what decides a key."""
    return {
        "torch": str(torch.__version__),
        "pillow": str(PIL.__version__),
        "tokenizers": str(tokenizers.__version__),
    }


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} is not available here ({reason})") from error
    return place


def _preprocessor(manifest: Manifest, tokenizer: bytes) -> Preprocessor:
    settings = manifest.preprocessing
    if settings.image_size**2 > PILLOW_PIXELS:
        raise ArtefactError(
            f"preprocessing.image_size is {settings.image_size}; expected "
            f"{isqrt(PILLOW_PIXELS):,} at most; export the model again"
        )
    try:
        return Preprocessor(
            settings.image_size,
            Tokenizer.from_buffer(tokenizer),
            settings.max_tokens,
            settings.background,
            settings.long_text,
            max_pixels=settings.max_pixels,
            max_text_bytes=settings.max_text_bytes,
        )
    except ValueError as error:
        raise ArtefactError(f"preprocessing or {TOKENIZER} is unusable: {error}") from error


def _hash_matrix(content: bytes, space: KeySpace) -> tuple[Tensor, Tensor]:
    try:
        tensors = load_tensors(content)
    except SafetensorError as error:
        raise ArtefactError(f"{HASH} is no safetensors file ({error})") from error
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if weight is None or bias is None:
        raise ArtefactError(f"{HASH} holds {sorted(tensors)}; expected weight and bias")
    if weight.shape != (space.bits, space.dim) or bias.shape != (space.bits,):
        raise ArtefactError(
            f"{HASH} has {list(weight.shape)} and {list(bias.shape)}; "
            f"expected [{space.bits}, {space.dim}] and [{space.bits}]"
        )
    if not all(t.dtype == torch.float32 and bool(torch.isfinite(t).all()) for t in (weight, bias)):
        raise ArtefactError(f"{HASH} holds {weight.dtype}, or numbers that are not finite")
    return weight, bias
