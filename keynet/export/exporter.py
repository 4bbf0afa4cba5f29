"""Write a trained key model as an artefact: its graph, hash matrix, tokenizer, manifest.

The export is built and verified in a folder beside its place and moved there at the end, so that
an interrupted one leaves nothing half written.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from keynet.export.formats import check_formats, further_formats
from keynet.export.graphs import read_graph, torchscript
from keynet.export.int8 import round_weights
from keynet.export.loader import current_versions, load_key_model
from keynet.export.manifest import (
    FORMAT,
    HASH,
    MODEL,
    TOKENIZER,
    ArtefactError,
    FileEntry,
    Golden,
    Manifest,
    Preprocessing,
    write_manifest,
)
from keynet.export.publish import (
    check_target,
    folder_beside,
    kept_thresholds,
    publish,
    recover,
)
from keynet.export.trained_on import TRAINED_ON, Numbers, packed
from keynet.hashing.aot import check_arches, compile_kernels
from keynet.models.lora import merged
from keynet.preprocess import Preprocessor
from keynet.types import KeyOutput, KeySpace, Request, RequestBatch

WEIGHTS = ("float32", "int8")
KEY_TOLERANCE = 1e-5
# Of the mean size of a logit: nearer to zero, rounding may give either sign.
SIGN_TOLERANCE = 1e-4


def exporter(
    *, formats: Sequence[str], weights: str, kernels: Sequence[int]
) -> Callable[..., Manifest]:
    """Return ``export_key_model`` with these settings, checked before anything is trained."""
    _check_settings(formats, weights, kernels)
    return partial(
        export_key_model, formats=tuple(formats), weights=weights, kernels=tuple(kernels)
    )


def export_key_model(
    model: nn.Module,
    preprocessor: Preprocessor,
    folder: str | Path,
    name: str,
    version: int,
    golden: Sequence[Request],
    attribution: Sequence[str] = (),
    formats: Sequence[str] = (),
    weights: str = "float32",
    kernels: Sequence[int] = (),
    trained_on: Numbers | None = None,
) -> Manifest:
    """Export a key model and return its manifest.

    Args:
        model: ``model(images, image_mask, tokens, token_mask) -> KeyOutput``, with ``key_dim``,
            ``num_bits`` and ``hash_matrix() -> (W [K, D], b [K])``, and ``code_blocks`` where its
            code has a part for each modality. It is copied, not changed.
        preprocessor: What it was trained with.
        folder: Where to; an export there is replaced once the new one is complete. Its thresholds
            are kept where the key space is the same.
        name: Of the key space.
        version: Of the key space.
        golden: Requests whose keys the loader verifies. One with a logit within rounding of
            zero is left out, as another processor may give it another code.
        attribution: One line for each source of data or weights that asks for one.
        formats: Further formats of the graph beside TorchScript: ``pt2``, ``onnx``.
        weights: ``int8`` rounds them, which makes another key space and three tenths of the file.
        kernels: Compute capabilities, 90 for 9.0, for which the hashing kernels are compiled.
        trained_on: A number [N] for each picture, and each text alone, that it was trained on
            (``data.held_out.content_numbers``); None where that is not known.

    Raises:
        ValueError: A format is not known, or its packages are not installed.
        ArtefactError: When the folder cannot be written or holds something else, when the traced
            model differs from the model, or when no golden request is left.
        RequestError: When a golden request cannot become a key.
    """
    target = Path(folder)
    recover(target)
    check_target(target)
    _check_settings(formats, weights, kernels)
    frozen = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    merged(frozen)
    if weights == "int8":
        round_weights(frozen)
    space = KeySpace(
        name=name,
        version=version,
        dim=_attribute(frozen, "key_dim"),
        bits=_attribute(frozen, "num_bits"),
        fingerprint=fingerprint(frozen, preprocessor),
    )
    plain = _Positional(frozen).eval()
    sample, checks = _batches(preprocessor, golden)
    traced = _trace(plain, sample)
    graphs = {
        MODEL: _torchscript_bytes(traced),
        **further_formats(plain, sample, preprocessor.max_tokens, formats),
    }
    for file, content in graphs.items():
        graph = read_graph(file, content)
        for batch in checks:
            _compare(frozen, file, graph, batch)
    golden_keys, golden_files = _golden(preprocessor, traced, golden)
    temporary = folder_beside(target)
    try:
        weight, bias = hash_matrix(frozen)
        contents = {
            **graphs,
            HASH: save_tensors({"weight": weight, "bias": bias}),
            TOKENIZER: preprocessor.tokenizer_json.encode(),
            **(compile_kernels(space.dim, space.bits, kernels) if kernels else {}),
            **golden_files,
            **({} if trained_on is None else {TRAINED_ON: packed(trained_on)}),
        }
        manifest = Manifest(
            format=FORMAT,
            key_space=space,
            preprocessing=_settings(preprocessor),
            files={
                file: FileEntry(hashlib.sha256(content).hexdigest(), len(content))
                for file, content in contents.items()
            },
            thresholds=kept_thresholds(target, space.fingerprint),
            golden=golden_keys,
            attribution=list(attribution),
            created_by=current_versions(),
            code_blocks=getattr(frozen, "code_blocks", None),
        )
        for file, content in contents.items():
            (temporary / file).parent.mkdir(parents=True, exist_ok=True)
            (temporary / file).write_bytes(content)
        write_manifest(manifest, temporary)
        load_key_model(temporary)
        publish(temporary, target)
    except OSError as error:
        raise ArtefactError(f"{target} cannot be written ({error.strerror})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _check_settings(formats: Sequence[str], weights: str, kernels: Sequence[int]) -> None:
    check_formats(formats)
    if weights not in WEIGHTS:
        raise ValueError(f"export.weights={weights!r}: expected one of {', '.join(WEIGHTS)}")
    check_arches(kernels)


def fingerprint(model: nn.Module, preprocessor: Preprocessor) -> str:
    """Return 16 hex digits that change with any weight, setting or token of a key model."""
    digest = hashlib.sha256()
    weight, bias = hash_matrix(model)
    tensors = {**model.state_dict(), "hash_matrix.weight": weight, "hash_matrix.bias": bias}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    digest.update(json.dumps(asdict(_settings(preprocessor)), sort_keys=True).encode())
    digest.update(preprocessor.tokenizer_json.encode())
    return digest.hexdigest()[:16]


def hash_matrix(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Return W [K, D] and b [K] of ``logits = W key + b``, float32 on the CPU."""
    give = getattr(model, "hash_matrix", None)
    if not callable(give):
        raise TypeError(f"{type(model).__name__} has no hash_matrix(); it is no key model")
    weight, bias = give()
    return (
        weight.detach().float().cpu().contiguous().clone(),
        bias.detach().float().cpu().contiguous().clone(),
    )


@contextmanager
def _torchscript_allowed() -> Iterator[None]:
    """Tracing a network of transformers reads every attribute, and one is deprecated.

    Whether a branch on data is harmless is proved on other batches afterwards.
    """
    with torchscript():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # type: ignore[attr-defined]
        yield


class _Positional(nn.Module):
    """The key model with plain tensors out, as TorchScript keeps them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, images: Tensor, image_mask: Tensor, tokens: Tensor, token_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return tuple(self.model(images, image_mask, tokens, token_mask))


Batch = tuple[Tensor, ...]


def _batches(
    preprocessor: Preprocessor, golden: Sequence[Request]
) -> tuple[Batch, list[RequestBatch]]:
    """Return a batch to trace with, and others of other sizes and paddings to compare on."""
    size = preprocessor.image_size
    noise = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    both = Request(image=noise, text="a")
    image_only, text_only = Request(image=noise[::-1]), Request(text="a b")
    checks = [
        _pad(preprocessor([text_only]), preprocessor.max_tokens),
        _pad(preprocessor([text_only, both, image_only, both, both]), preprocessor.max_tokens),
        preprocessor([image_only]),
    ]
    if golden:
        checks.append(preprocessor(golden))
    return tuple(preprocessor([both, image_only, text_only])[:4]), checks


def _trace(model: nn.Module, sample: Batch) -> torch.jit.ScriptModule:
    with torch.no_grad(), _torchscript_allowed():
        traced = torch.jit.trace(model, sample)  # type: ignore[no-untyped-call]
    assert isinstance(traced, torch.jit.ScriptModule)
    return traced


def _torchscript_bytes(traced: torch.jit.ScriptModule) -> bytes:
    """Return the TorchScript without its debug records, which hold paths of this machine."""
    saved, plain = io.BytesIO(), io.BytesIO()
    with _torchscript_allowed():
        torch.jit.save(traced, saved)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(plain, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                new.writestr(zipfile.ZipInfo(entry.filename), old.read(entry))
    return plain.getvalue()


def _pad(batch: RequestBatch, length: int) -> RequestBatch:
    more = length - batch.tokens.shape[1]
    return batch._replace(
        tokens=nn.functional.pad(batch.tokens, (0, more)),
        token_mask=nn.functional.pad(batch.token_mask, (0, more)),
    )


def _compare(model: nn.Module, file: str, graph: Callable[..., Any], batch: RequestBatch) -> None:
    """Raise unless the graph of a file gives the model's keys, codes and hash product."""
    with torch.inference_mode():
        wanted = KeyOutput(*model(*batch[:4]))
        got = KeyOutput(*graph(*batch[:4]))
    weight, bias = hash_matrix(model)
    shape = f"batch {batch.tokens.shape[0]}, length {batch.tokens.shape[1]}"
    gap = float((wanted.key - got.key).abs().max())
    if not gap <= KEY_TOLERANCE:
        raise ArtefactError(
            f"the keys of {file} differ by {gap:.2g} from the model's at {shape}; something in "
            "forward depends on the sample batch (a Python number from a shape, a branch on data)"
        )
    certain = _certain(wanted.logits) | _certain(got.logits)
    flips = int((((wanted.logits >= 0) != (got.logits >= 0)) & certain).sum())
    if flips:
        raise ArtefactError(f"{flips} bits of the codes of {file} differ at {shape}")
    product = float((got.key @ weight.T + bias - got.logits).abs().max() / got.logits.abs().mean())
    if not product <= SIGN_TOLERANCE:
        raise ArtefactError(
            f"logits differ from W key + b by {product:.2g} of their size; "
            "fold the hash head's BatchNorm into hash_matrix()"
        )
    norm = float((got.key.norm(dim=1) - 1).abs().max())
    if not norm <= SIGN_TOLERANCE:
        raise ArtefactError(f"keys have norms {norm:.2g} away from 1; normalise them in forward")


def _certain(logits: Tensor) -> Tensor:
    """Return which logits [B, K] are further from zero than rounding moves them."""
    return logits.abs() > SIGN_TOLERANCE * logits.abs().mean()


def _golden(
    preprocessor: Preprocessor, traced: nn.Module, requests: Sequence[Request]
) -> tuple[list[Golden], dict[str, bytes]]:
    """Return the golden requests with their keys, and the files of their images."""
    if not requests:
        raise ArtefactError("golden is empty; give a few requests for the loader to verify")
    with torch.inference_mode():
        output = KeyOutput(*traced(*preprocessor(requests)[:4]))
    codes = np.packbits((output.logits >= 0).numpy(), axis=1)
    golden: list[Golden] = []
    files: dict[str, bytes] = {}
    for i in torch.nonzero(_certain(output.logits).all(dim=1)).flatten().tolist():
        image, source = None, requests[i].image
        if source is not None:
            content, suffix = _image_file(source)
            image = f"golden/{len(golden)}.{suffix}"
            files[image] = content
        alignment = float(output.alignment[i])
        golden.append(
            Golden(
                image=image,
                text=requests[i].text,
                code=codes[i].tobytes().hex(),
                key=[round(x, 6) for x in output.key[i].tolist()],
                alignment=None if np.isnan(alignment) else round(alignment, 6),
            )
        )
    if not golden:
        raise ArtefactError(
            f"each of {len(requests)} golden requests has a logit within rounding of zero; "
            "give others, or look at the hash head"
        )
    return golden, files


def _image_file(source: bytes | str | Path | np.ndarray) -> tuple[bytes, str]:
    """Return the image as bytes (an array as PNG) and the suffix of its format."""
    if isinstance(source, np.ndarray):
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(source)).save(buffer, "PNG")
        return buffer.getvalue(), "png"
    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    with Image.open(io.BytesIO(content)) as image:
        return content, str(image.format).lower()


def _settings(preprocessor: Preprocessor) -> Preprocessing:
    return Preprocessing(
        image_size=preprocessor.image_size,
        background=preprocessor.background,
        max_pixels=preprocessor.max_pixels,
        fit="letterbox",
        frame="first",
        max_tokens=preprocessor.max_tokens,
        max_text_bytes=preprocessor.max_text_bytes,
        long_text=preprocessor.long_text,
        text_form="NFC",
    )


def _attribute(model: nn.Module, name: str) -> int:
    value = getattr(model, name, None)
    if not isinstance(value, int):
        raise TypeError(f"{type(model).__name__}.{name} is {value!r}; a key model has an int there")
    return value
