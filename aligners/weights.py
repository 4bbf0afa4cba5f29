"""Weights of a head in files of fp32, fp16 or int8, loaded into a module that runs.

A file is safetensors: the tensors of ``state_dict()`` under their names. In int8, a matrix is in
whole numbers with one float32 scale a row beside it, ``NAME.scale``; all else stays float32. The
metadata carry, under the format's name, the dtype and the error against fp32 when it was written.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

FORMAT = "keynet-weights-1"
DTYPES = ("fp32", "fp16", "int8")
SCALE = ".scale"
LEVELS = 127  # symmetric: -128 is left out
FLOATING = {"fp32": torch.float32, "fp16": torch.float16, "int8": torch.float32}  # beside int8


@dataclass(frozen=True)
class WeightReport:
    """What a file of weights holds.

    Args:
        dtype: fp32, fp16 or int8.
        tensors: Number of tensors of the module.
        bytes: Size of the file.
        max_error: Greatest |w - w'| of a tensor over its greatest |w|, of the worst tensor.
        mean_error: Sum of |w - w'| over the sum of |w|, all tensors.
    """

    dtype: str
    tensors: int
    bytes: int
    max_error: float
    mean_error: float


def save_weights(module: nn.Module, path: str | Path, dtype: str = "fp32") -> WeightReport:
    """Write parameters and buffers; a reader of ``path`` sees the old file or the whole new one.

    Args:
        module: In any floating dtype; fp32 is what it is compared with. Of a ``HotModule``, what
            runs in it.
        path: File to write.
        dtype: fp32, fp16 or int8.

    Raises:
        ValueError: An unknown dtype, a weight that is empty or not finite in it, or a file that
            cannot be written.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} of weights: expected one of {', '.join(DTYPES)}")
    module = module.module if isinstance(module, HotModule) else module
    exact = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).cpu().contiguous().clone()
        for name, tensor in module.state_dict().items()
    }
    _check_values(exact, "weights of the module")
    stored = _packed(exact, dtype)
    again = _unpacked(stored)
    _check_values(again, f"weights as {dtype}")
    max_error, mean_error = _errors(exact, again)
    about = {"dtype": dtype, "max_error": max_error, "mean_error": mean_error}
    # One entry: safetensors writes several in any order, and equal weights are to be equal files.
    content = save(stored, {FORMAT: json.dumps(about)})
    path = Path(path)
    try:
        # In a folder of its own, which goes whatever happens; a temporary file would be readable by
        # its owner alone.
        with tempfile.TemporaryDirectory(prefix=".weights.", dir=path.parent) as folder:
            temporary = Path(folder, "file")
            temporary.write_bytes(content)
            os.replace(temporary, path)
    except OSError as error:
        raise ValueError(
            f"weights {path} cannot be written ({error.strerror}); give a file in a folder that "
            "can be written to"
        ) from error
    return WeightReport(dtype, len(exact), len(content), max_error, mean_error)


def read_weights(path: str | Path) -> tuple[dict[str, Tensor], WeightReport]:
    """Return a file's tensors by name, floating ones in float32, and what it holds.

    Raises:
        ValueError: A file that is missing, damaged or not of ``save_weights``.
    """
    try:
        content = Path(path).read_bytes()  # not mapped: what was checked must not change
        stored = load(content)
    except (OSError, SafetensorError, KeyError) as error:  # KeyError: a dtype torch does not have
        raise ValueError(f"weights {path} cannot be read ({error})") from error
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    try:
        about = json.loads(json.loads(header)["__metadata__"][FORMAT])
        errors = float(about["max_error"]), float(about["mean_error"])
        dtype = DTYPES[DTYPES.index(about["dtype"])]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"weights {path} do not say what they are ({error!r}): write them with save_weights"
        ) from error
    _check_stored(stored, dtype, f"weights {path}")
    found = _unpacked(stored)
    _check_values(found, f"weights {path}")
    return found, WeightReport(dtype, len(found), len(content), *errors)


def load_weights(module: nn.Module, path: str | Path) -> WeightReport:
    """Copy a file into a module in place, which may be running; a bad file changes nothing.

    Parameters keep their identity, memory, dtype and device, so that optimizers and traced graphs
    that share them go on. A forward on another thread during the copy is safe but may see old and
    new values side by side, even within one tensor; ``HotModule`` rules that out.

    Raises:
        ValueError: As ``read_weights``; other names, shapes or whole-number dtypes than the
            module's; a weight that is not finite in the module's dtype.
    """
    found, report = read_weights(path)
    state = module.state_dict()
    wrong = [f"lack {name}" for name in state if name not in found]
    wrong += [f"have an unknown {name}" for name in found if name not in state]
    for name in state.keys() & found.keys():
        old, new = state[name], found[name]
        if old.shape != new.shape:
            wrong.append(f"have {name} {list(new.shape)}, not {list(old.shape)}")
        elif old.dtype != new.dtype and not (old.is_floating_point() and new.is_floating_point()):
            wrong.append(f"have {name} in {new.dtype}, not {old.dtype}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(f"weights {path} do not fit: they {', '.join(sorted(wrong)[:3])}{more}")
    fresh = {name: found[name].to(old.device, old.dtype) for name, old in state.items()}
    _check_values(fresh, f"weights {path} in the module's dtype")
    with torch.no_grad():
        for name, old in state.items():
            old.copy_(fresh[name])
    return report


class HotModule(nn.Module):
    """A module whose weights change between two forwards, never within one.

    For serving: a load takes the memory of a second copy for its time, and what it holds afterwards
    is another module with other parameters.

    Args:
        module: What runs.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._loading = threading.Lock()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns; the whole forward uses the weights of its start."""
        return self.module(*args, **kwargs)

    def load(self, path: str | Path) -> WeightReport:
        """Load a file; forwards go on meanwhile. ValueError as ``load_weights``."""
        with self._loading:
            fresh = copy.deepcopy(self.module)
            report = load_weights(fresh, path)
            self.module = fresh  # one reference: a forward holds the old module to its end
        return report


@dataclass(frozen=True)
class WeightError:
    """How far weights of a file are from those of a module, and its outputs with them.

    Args:
        max_weight: Greatest |w - w'| of a tensor over its greatest |w|, of the worst tensor.
        mean_weight: Sum of |w - w'| over the sum of |w|, all tensors.
        max_cosine: Greatest 1 - cosine of an output with and without.
        mean_cosine: Its mean.
    """

    max_weight: float
    mean_weight: float
    max_cosine: float
    mean_cosine: float


@torch.no_grad()
def weight_error(
    module: nn.Module, path: str | Path, embeddings: Mapping[str, Tensor]
) -> WeightError:
    """Return the error of a file against a module, which is left as it is.

    Args:
        module: An aligner, in fp32: embeddings and masks to vectors by modality.
        path: Of ``save_weights``.
        embeddings: By modality, [N, dim].

    Raises:
        ValueError: As ``load_weights``, and as the module for embeddings that do not fit; no rows.
    """
    for name, rows in embeddings.items():
        if not len(rows):
            raise ValueError(f"{name} has no rows to measure an error on: give at least one")
    module = copy.deepcopy(module).eval()
    masks = {
        name: torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        for name, rows in embeddings.items()
    }
    exact = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    before = module(embeddings, masks)
    load_weights(module, path)
    after = module(embeddings, masks)
    cosine = torch.cat(
        [
            F.cosine_similarity(before[name].double(), after[name].double(), dim=-1)
            for name in embeddings
        ]
    )
    error = (1 - cosine).clamp_min(0)
    return WeightError(
        *_errors(exact, module.state_dict()), float(error.max()), float(error.mean())
    )


def _packed(exact: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    stored = {}
    for name, tensor in exact.items():
        if dtype == "fp16" and tensor.is_floating_point():
            stored[name] = tensor.half()
        elif dtype == "int8" and tensor.is_floating_point() and tensor.ndim == 2:
            scale = tensor.abs().amax(1) / LEVELS
            scale = torch.where(scale > 0, scale, torch.ones_like(scale))  # a row of zeros
            whole = (tensor / scale[:, None]).round().clamp(-LEVELS, LEVELS)
            stored[name], stored[name + SCALE] = whole.to(torch.int8), scale
        else:
            stored[name] = tensor
    return stored


def _unpacked(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, tensor in stored.items():
        scale = stored.get(name + SCALE)
        if scale is not None:
            found[name] = tensor.float() * scale[:, None]
        elif not (name.endswith(SCALE) and name.removesuffix(SCALE) in stored):
            found[name] = tensor.float() if tensor.is_floating_point() else tensor
    return found


def _errors(exact: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[float, float]:
    """Greatest and mean error of floating tensors, relative."""
    worst, total, size = 0.0, 0.0, 0.0
    for name, tensor in exact.items():
        if tensor.is_floating_point() and tensor.numel():
            tensor = tensor.double()
            off = (tensor - other[name].double()).abs()
            worst = max(worst, float(off.max() / tensor.abs().max().clamp_min(1e-30)))
            total, size = total + float(off.sum()), size + float(tensor.abs().sum())
    return worst, total / max(size, 1e-30)


def _check_stored(stored: Mapping[str, Tensor], dtype: str, of: str) -> None:
    """Refuse what ``_packed`` does not make, before it is computed with."""
    again = "write them again with save_weights"
    for name, tensor in stored.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in stored:
            rows = stored[name.removesuffix(SCALE)]
            if rows.ndim != 2 or rows.dtype != torch.int8 or tensor.shape != rows.shape[:1]:
                raise ValueError(f"{of}: {name} {list(tensor.shape)} fits no int8 matrix; {again}")
            if dtype != "int8":
                raise ValueError(f"{of} say that they are {dtype}, but {name} is of int8; {again}")
            if tensor.dtype != torch.float32 or not (tensor.isfinite() & (tensor > 0)).all():
                raise ValueError(
                    f"{of}: {name} is no scale: expected finite float32 above 0; {again}"
                )
        elif (tensor.is_complex() or tensor.is_floating_point()) and (
            tensor.dtype != FLOATING[dtype] or (dtype == "int8" and tensor.ndim == 2)
        ):
            found = f"{tensor.dtype} {list(tensor.shape)}"
            raise ValueError(f"{of} say that they are {dtype}, but {name} is {found}; {again}")


def _check_values(tensors: Mapping[str, Tensor], of: str) -> None:
    for name, tensor in tensors.items():
        if not tensor.numel():
            raise ValueError(f"{of}: {name} {list(tensor.shape)} is empty; give it a width above 0")
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{of}: {name} is not finite; train it again or take fp32")
