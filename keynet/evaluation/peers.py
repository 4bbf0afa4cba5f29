"""What is measured against what: key models and open_clip peers, each one TorchScript graph.

All are traced over a picture and a text and frozen, as the loader does with an export, and all run
in float32. A key model takes uint8 pixels, since its graph starts there; a peer takes floats.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from keynet.export.graphs import read_torchscript
from keynet.export.loader import read_file
from keynet.export.manifest import MODEL, read_manifest

TRACED_BATCH = 2  # at 1, a batch is a number that tracing may keep
CHECKED_BATCH = 3
TOLERANCE = 1e-4  # relative, between the graph and the model it was traced from
BYTES = 256  # ids that every byte-level vocabulary has


@dataclass(frozen=True)
class Encoder:
    """One row of the bench.

    Args:
        name: In reports.
        run: The graph.
        inputs: Makes its inputs for a batch of that size.
        num_parameters: Of the model.
        shape: What it sees, in words: pixels a side, tokens.
    """

    name: str
    run: Callable[..., Any]
    inputs: Callable[[int], tuple[Tensor, ...]]
    num_parameters: int
    shape: str


def exported_encoder(name: str, folder: str | Path, tokens: int) -> Encoder:
    """Return the graph of an export, at the resolution that it was exported for.

    Args:
        name: Of the row.
        folder: The export.
        tokens: Length of the texts; fewer where the model takes no more.

    Raises:
        ArtefactError: When there is no such export, or a file of it was altered.
    """
    manifest = read_manifest(folder)
    content = read_file(folder, manifest, MODEL)
    graph = read_torchscript(content, torch.device("cpu"))
    settings = manifest.preprocessing
    return _key_encoder(name, graph, settings.image_size, min(tokens, settings.max_tokens))


def key_encoder(name: str, model: nn.Module, image_size: int, tokens: int) -> Encoder:
    """Return a key model as a graph.

    Args:
        name: Of the row.
        model: ``keynet.models.key_model.KeyModel``; set to evaluation mode.
        image_size: Pixels a side.
        tokens: Length of the texts; fewer where the model takes no more.
    """
    tokens = min(tokens, getattr(getattr(model, "text_encoder", None), "max_tokens", tokens))
    inputs = _key_inputs(image_size, tokens)
    return _key_encoder(name, _traced(model, inputs), image_size, tokens)


def open_clip_encoder(name: str) -> Encoder:
    """Return a peer with random weights, at its own resolution and length of text.

    Its branches are merged where it has a form for inference (MobileCLIP does), and its tensors
    are channels-last, as a key model's are: 1.2 times as fast for MobileCLIP2-S0 on a CPU.

    Args:
        name: An architecture that open_clip knows.

    Raises:
        ModuleNotFoundError: When open_clip is not installed.
        ValueError: When it knows no such architecture.
    """
    try:
        open_clip: Any = importlib.import_module("open_clip")
        timm: Any = importlib.import_module("timm.utils")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is missing, which peers need; "
            "install it with: pip install 'keynet-cache[teachers]'"
        ) from error
    if name not in open_clip.list_models():
        raise ValueError(
            f"open_clip knows no model {name!r}; see open_clip.list_models() for those it knows"
        )
    logging.disable(logging.WARNING)  # that the weights are random: they are meant to be
    try:
        model = open_clip.create_model(name, pretrained=None)
    finally:
        logging.disable(logging.NOTSET)
    model = timm.reparameterize_model(model.eval()).to(memory_format=torch.channels_last)
    size = model.visual.image_size
    height, width = (size, size) if isinstance(size, int) else size
    length, words = model.context_length, model.vocab_size

    def inputs(batch: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randn(batch, 3, height, width, generator=generator)
        return (
            pixels.contiguous(memory_format=torch.channels_last),
            torch.randint(1, words, (batch, length), generator=generator),
        )

    shape = f"{height} px, {length} tokens"
    return Encoder(name, _frozen(_traced(model, inputs)), inputs, _count(model), shape)


class _Plain(nn.Module):
    """A model whose output is a plain tuple of tensors, as TorchScript keeps it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.model(*inputs))


def _key_inputs(image_size: int, tokens: int) -> Callable[[int], tuple[Tensor, ...]]:
    def inputs(batch: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        pixels = (batch, 3, image_size, image_size)
        return (
            torch.randint(256, pixels, dtype=torch.uint8, generator=generator),
            torch.ones(batch, dtype=torch.bool),
            torch.randint(BYTES, (batch, tokens), generator=generator),
            torch.ones(batch, tokens, dtype=torch.bool),
        )

    return inputs


def _key_encoder(name: str, graph: torch.jit.ScriptModule, size: int, tokens: int) -> Encoder:
    inputs, shape = _key_inputs(size, tokens), f"{size} px, {tokens} tokens"
    return Encoder(name, _frozen(graph), inputs, _count(graph), shape)


def _traced(
    model: nn.Module, inputs: Callable[[int], tuple[Tensor, ...]]
) -> torch.jit.ScriptModule:
    """Return the graph, compared with the model at another batch size."""
    plain = _Plain(model).eval().requires_grad_(False)
    with torch.no_grad(), _torchscript():
        # check_trace fails on MobileCLIP's text tower; the comparison below takes its place.
        graph = torch.jit.trace(plain, inputs(TRACED_BATCH), check_trace=False)  # type: ignore[no-untyped-call]
        sample = inputs(CHECKED_BATCH)
        pairs = zip(graph(*sample), plain(*sample), strict=True)
        gaps = [(a - b).abs().max() / b.abs().max().clamp(min=1) for a, b in pairs]
    gap = float(torch.stack(gaps).max())
    if not gap <= TOLERANCE:
        raise ValueError(
            f"the graph of {type(model).__name__} differs by {gap:.2g} from the model at batch "
            f"{CHECKED_BATCH}; something in its forward depends on the batch that was traced"
        )
    assert isinstance(graph, torch.jit.ScriptModule)
    return graph


def _frozen(graph: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    with _torchscript():
        frozen = torch.jit.freeze(graph.eval())
    assert isinstance(frozen, torch.jit.ScriptModule)
    return frozen


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def _torchscript() -> Iterator[None]:
    """Without torch's warnings that TorchScript is deprecated, or that a graph may not be general.

    The latter is compared instead.
    """
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", r"`torch\.jit", category)
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # type: ignore[attr-defined]
        yield
