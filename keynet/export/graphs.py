"""The graph of an export, in any of the formats it ships: TorchScript, torch.export, ONNX."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from keynet.export.manifest import MODEL, ONNX, PT2, ArtefactError
from keynet.export.pt2_archive import check_archive
from keynet.types import KeyOutput

# images uint8 [B, 3, S, S], image_mask bool [B], tokens int64 [B, L], token_mask bool [B, L]
Graph = Callable[[Tensor, Tensor, Tensor, Tensor], KeyOutput]
INPUTS = ("images", "image_mask", "tokens", "token_mask")


@contextmanager
def torchscript() -> Iterator[None]:
    """TorchScript is what this format ships; torch calls it deprecated at every use."""
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", r"`torch\.jit", category)
        yield


def read_torchscript(content: bytes, device: torch.device) -> torch.jit.ScriptModule:
    """Return the TorchScript of an export.

    Raises:
        ArtefactError: It is none.
    """
    try:
        with torchscript():
            model = torch.jit.load(io.BytesIO(content), map_location=device)  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError, LookupError) as error:
        reason = str(error).splitlines()[0]
        raise ArtefactError(f"{MODEL} is no TorchScript that loads here ({reason})") from error
    assert isinstance(model, torch.jit.ScriptModule)
    return model.eval()


def read_graph(name: str, content: bytes) -> Graph:
    """Return what runs a file of an export on the CPU.

    Args:
        name: ``model.ts.pt``, ``model.pt2`` or ``model.onnx``.
        content: Of the file.

    Raises:
        ArtefactError: It is no graph of that format.
        ModuleNotFoundError: onnxruntime is not installed.
    """
    readers = {MODEL: _of_torchscript, PT2: _of_torch_export, ONNX: _of_onnx}
    return readers[name](content)


def _of_torchscript(content: bytes) -> Graph:
    return _on_tensors(read_torchscript(content, torch.device("cpu")))


def _of_torch_export(content: bytes) -> Graph:
    check_archive(content)
    try:
        program = torch.export.load(io.BytesIO(content))
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise ArtefactError(f"{PT2} is no exported program that loads here ({reason})") from error
    return _on_tensors(program.module())


def _of_onnx(content: bytes) -> Graph:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{ONNX} runs on onnxruntime; install it with: pip install 'keynet-cache[formats]'"
        ) from error
    # Tensors in files beside the graph are files that nothing checks.
    if b"external_data" in content or b"location" in content:
        raise ArtefactError(f"{ONNX} names tensors in other files, which are not read")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise ArtefactError(f"{ONNX} is no graph that loads here ({reason})") from error

    def run(*batch: Tensor) -> KeyOutput:
        given = {name: tensor.numpy() for name, tensor in zip(INPUTS, batch, strict=True)}
        return KeyOutput(*(torch.from_numpy(x) for x in session.run(KeyOutput._fields, given)))

    return run


def _on_tensors(model: Callable[..., Any]) -> Graph:
    def run(*batch: Tensor) -> KeyOutput:
        with torch.inference_mode():
            return KeyOutput(*model(*batch))

    return run
