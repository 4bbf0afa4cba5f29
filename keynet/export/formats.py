"""Further formats of a key model's graph: torch.export (.pt2) and ONNX."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from keynet.export.graphs import INPUTS
from keynet.export.manifest import ONNX, PT2, ArtefactError
from keynet.export.pt2_archive import check_archive
from keynet.types import KeyOutput

OPSET = 20
FORMATS = {"pt2": PT2, "onnx": ONNX}


def check_formats(names: Sequence[str]) -> None:
    """Raise ValueError for a format that is not known, or whose packages are not installed."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ValueError(f"export.formats={names!r}: give a list, such as [pt2]")
    for name in names:
        if name not in FORMATS:
            raise ValueError(
                f"export.formats names {name!r}; expected some of {', '.join(FORMATS)} "
                "(TorchScript is always there)"
            )
    if "onnx" in names:
        try:
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
        except ModuleNotFoundError as error:
            raise ValueError(
                f"export.formats=[onnx] needs {error.name}; "
                "install it with: pip install 'keynet-cache[formats]'"
            ) from error


def further_formats(
    model: nn.Module, sample: tuple[Tensor, ...], max_tokens: int, names: Sequence[str]
) -> dict[str, bytes]:
    """Return the files of these formats.

    Args:
        model: ``model(images, image_mask, tokens, token_mask)`` gives a tuple of tensors.
        sample: A batch of at least 2 requests and 2 tokens.
        max_tokens: Greatest length of texts.
        names: Of ``FORMATS``.

    Raises:
        ArtefactError: When torch cannot export the model's graph for every batch and length.
    """
    if not names:
        return {}
    program = _exported(model, sample, max_tokens)
    writers: dict[str, Callable[[ExportedProgram], bytes]] = {"pt2": _pt2, "onnx": _onnx}
    return {FORMATS[name]: writers[name](program) for name in names}


def _exported(model: nn.Module, sample: tuple[Tensor, ...], max_tokens: int) -> ExportedProgram:
    # Both vary, from one request with one token on: what would become a constant is an error.
    batch, length = Dim("batch", min=1), Dim("length", min=1, max=max_tokens)
    shapes = ({0: batch}, {0: batch}, {0: batch, 1: length}, {0: batch, 1: length})
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, sample, dynamic_shapes=shapes)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ArtefactError(f"torch.export cannot take the model's graph ({reason})") from error
    # Where each node comes from: paths of this machine, which nobody else can use.
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
    program.example_inputs = None  # would be pickled
    return program


def _pt2(program: ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    content = buffer.getvalue()
    check_archive(content)
    return content


def _onnx(program: ExportedProgram) -> bytes:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.onnx.export(
            program,
            opset_version=OPSET,
            input_names=list(INPUTS),
            output_names=list(KeyOutput._fields),
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    proto = made.model_proto
    for node in proto.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    content: bytes = proto.SerializeToString()
    return content
