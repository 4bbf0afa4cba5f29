"""The hashing ops: declared once, so that they pass through torch.compile and torch.export.

In a graph they are ``torch.ops.keynet.hash_keys``, which returns the norms of the keys beside their
codes, and its neighbours; those check nothing. The functions here say what is wrong with what they
are given. Both run what suits the device; ``reference`` is their definition.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from keynet.hashing.reference import ABSENT
from keynet.types import CODE_BITS

VARIABLE = "KEYNET_HASHING"
BACKENDS = {
    "reference": "keynet.hashing.reference",
    "cpu": "keynet.hashing.cpu",
    "triton": "keynet.hashing.triton_kernels",
}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
MOST = 4096  # codes that one search finds
log = logging.getLogger(__name__)

_library: Any = torch.library  # has no types
_LIBRARY = _library.Library("keynet", "DEF")
_LIBRARY.define("hash_keys(Tensor keys, Tensor weight, Tensor bias) -> (Tensor, Tensor)")
_LIBRARY.define(
    "hamming_search(Tensor queries, Tensor codes, int k, int radius, "
    "Tensor? query_scopes=None, Tensor? code_scopes=None) -> (Tensor, Tensor)"
)
_LIBRARY.define("cosine_rerank(Tensor queries, Tensor vectors, Tensor candidates) -> Tensor")


@cache
def backend(device: str) -> ModuleType:
    """Return what runs the ops on a kind of device, ``cpu`` or ``cuda``; chosen once, and logged.

    The environment's KEYNET_HASHING=reference, cpu or triton overrides the choice.

    Raises:
        ValueError: The environment names another.
    """
    given = os.environ.get(VARIABLE)
    if given is not None and given not in BACKENDS:
        raise ValueError(f"{VARIABLE}={given}: expected one of {', '.join(BACKENDS)}")
    name = given or {"cpu": "cpu", "cuda": "triton"}.get(device, "reference")
    try:
        module = importlib.import_module(BACKENDS[name])
    except ModuleNotFoundError as error:
        if given or error.name != "triton":
            raise
        name, module = "reference", importlib.import_module(BACKENDS["reference"])
        log.warning("triton is not installed: codes on %s are searched by plain torch", device)
    log.info("hashing ops on %s: %s", device, name)
    return module


def hash_keys(keys: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the codes uint8 [B, K/8] of keys: the signs of ``W (x / |x|) + b``, packed.

    On a GPU this waits for the result, to see that no key is zero.

    Args:
        keys: [B, D], float32, bfloat16 or float16.
        weight: W float32 [K, D].
        bias: b float32 [K].

    Raises:
        ValueError: Shapes or types do not fit, or a key is zero, NaN or infinite.
    """
    if keys.dim() != 2 or keys.dtype not in FLOATS:
        raise ValueError(f"keys are {_kind(keys)}; expected float32 or half precision [B, D]")
    shape = weight.shape
    if len(shape) != 2 or shape[1] != keys.shape[1] or bias.shape != shape[:1]:
        raise ValueError(
            f"weight is {_kind(weight)} and bias {_kind(bias)}; "
            f"expected [K, {keys.shape[1]}] and [K], as keys are {_kind(keys)}"
        )
    if shape[0] not in CODE_BITS or not weight.dtype == bias.dtype == torch.float32:
        raise ValueError(
            f"weight is {_kind(weight)} and bias {_kind(bias)}; "
            f"expected float32 and K one of {CODE_BITS}"
        )
    if keys.device != weight.device or keys.device != bias.device:
        raise ValueError(f"keys are on {keys.device}, weight on {weight.device}; move either")
    codes, norms = backend(keys.device.type).hash_keys(keys, weight, bias)
    for row, norm in enumerate(norms.tolist()):
        if not 0 < norm < math.inf:  # false for NaN
            raise ValueError(
                f"key {row} has norm {norm}; a key that is zero or not finite has no code"
            )
    found: Tensor = codes
    return found


def words(codes: Tensor) -> Tensor:
    """Return codes uint8 [N, K/8] as words int32 [N, K/32]; a view where they lie side by side.

    On a GPU a store of codes is searched at full speed where words of one place lie side by side:
    ``words(codes).T.contiguous().T``.

    Raises:
        ValueError: They are no codes.
    """
    if codes.dtype != torch.uint8 or codes.dim() != 2 or 8 * codes.shape[1] not in CODE_BITS:
        raise ValueError(f"codes are {_kind(codes)}; expected uint8 [N, K/8], K of {CODE_BITS}")
    if len(codes) == 0:  # an empty array has no strides to view
        return codes.new_empty((0, codes.shape[1] // 4), dtype=torch.int32)
    if codes.storage_offset() % 4:  # words begin where memory has them
        return codes.clone(memory_format=torch.contiguous_format).view(torch.int32)
    return codes.contiguous().view(torch.int32)


def hamming_search(
    queries: Tensor,
    codes: Tensor,
    k: int,
    radius: int | None = None,
    query_scopes: Tensor | None = None,
    code_scopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the k nearest codes: distances int32 [Q, k] and indices int64 [Q, k].

    Ordered by distance, then by index. Places that no code takes, where fewer are there, within
    the radius and of the scope, have index -1 and distance K + 1.

    Args:
        queries: int32 [Q, K/32]; see ``words``.
        codes: int32 [N, K/32].
        k: How many, 4,096 at most.
        radius: Greatest distance; None is any.
        query_scopes: int32 [Q]; a query finds codes of its scope alone. None: all are one scope.
        code_scopes: int32 [N].

    Raises:
        ValueError: Shapes, types or settings do not fit.
    """
    for name, given in (("queries", queries), ("codes", codes)):
        if given.dtype != torch.int32 or given.dim() != 2 or 32 * given.shape[1] not in CODE_BITS:
            wanted = ", ".join(str(bits // 32) for bits in CODE_BITS)
            raise ValueError(
                f"{name} are {_kind(given)}; expected int32 words [N, K/32], K/32 one of {wanted}"
            )
    if queries.shape[1] != codes.shape[1]:
        raise ValueError(f"queries are {_kind(queries)}, codes {_kind(codes)}; of different widths")
    if type(k) is not int or not 1 <= k <= MOST:
        raise ValueError(f"k={k!r}: expected an int, 1 to {MOST}")
    bits = 32 * codes.shape[1]
    if radius is not None and (type(radius) is not int or radius < 0):
        raise ValueError(f"radius={radius!r}: expected an int, 0 to {bits}, or None for any")
    if queries.device != codes.device:
        raise ValueError(f"queries are on {queries.device}, codes on {codes.device}; move either")
    if query_scopes is not None or code_scopes is not None:
        _check_scopes(query_scopes, queries, code_scopes, codes)
    reach = bits if radius is None else min(radius, bits)
    found: tuple[Tensor, Tensor] = backend(codes.device.type).hamming_search(
        queries, codes, k, reach, query_scopes, code_scopes
    )
    return found


def cosine_rerank(queries: Tensor, vectors: Tensor, candidates: Tensor) -> Tensor:
    """Return the cosines float32 [Q, C] of queries with the vectors of their candidates.

    On a GPU this waits for the candidates, to see that they are there.

    Args:
        queries: [Q, D], float32 or half precision, of any norm.
        vectors: [N, D], float32 or half precision, of any norm.
        candidates: int64 [Q, C], rows of ``vectors``; -1 gives -inf.

    Raises:
        ValueError: Shapes or types do not fit.
    """
    if queries.dim() != 2 or vectors.dim() != 2 or queries.shape[1] != vectors.shape[1]:
        raise ValueError(
            f"queries are {_kind(queries)}, vectors {_kind(vectors)}; expected [Q, D] and [N, D]"
        )
    if queries.dtype not in FLOATS or vectors.dtype not in FLOATS:
        raise ValueError(
            f"queries are {_kind(queries)}, vectors {_kind(vectors)}; "
            "expected float32 or half precision"
        )
    if candidates.dtype != torch.int64 or candidates.shape[:-1] != queries.shape[:1]:
        raise ValueError(
            f"candidates are {_kind(candidates)}; expected int64 [{queries.shape[0]}, C]"
        )
    if not queries.device == vectors.device == candidates.device:
        devices = f"{queries.device}, {vectors.device} and {candidates.device}"
        raise ValueError(f"queries, vectors and candidates are on {devices}; move them to one")
    if candidates.numel():
        least, greatest = (int(edge) for edge in candidates.aminmax())
        if least < ABSENT or greatest >= len(vectors):
            wrong = least if least < ABSENT else greatest
            raise ValueError(f"candidate {wrong}: expected a row of {len(vectors)} vectors, or -1")
    found: Tensor = backend(queries.device.type).cosine_rerank(queries, vectors, candidates)
    return found


def _check_scopes(
    query_scopes: Tensor | None, queries: Tensor, code_scopes: Tensor | None, codes: Tensor
) -> None:
    if query_scopes is None or code_scopes is None:
        raise ValueError("query_scopes and code_scopes go together; give both or neither")
    for name, scopes, rows in (
        ("query_scopes", query_scopes, queries),
        ("code_scopes", code_scopes, codes),
    ):
        if scopes.dtype != torch.int32 or scopes.shape != rows.shape[:1]:
            raise ValueError(f"{name} are {_kind(scopes)}; expected int32 [{rows.shape[0]}]")
        if scopes.device != rows.device:
            raise ValueError(f"{name} are on {scopes.device}, codes on {rows.device}; move either")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _run(op: str) -> Any:
    def run(first: Tensor, *others: Any) -> Any:
        return getattr(backend(first.device.type), op)(first, *others)

    return run


def _fake_hash_keys(keys: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    codes = keys.new_empty((keys.shape[0], weight.shape[0] // 8), dtype=torch.uint8)
    return codes, keys.new_empty(keys.shape[:1], dtype=torch.float32)


def _fake_hamming_search(
    queries: Tensor,
    codes: Tensor,
    k: int,
    radius: int,
    query_scopes: Tensor | None = None,
    code_scopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    shape = (queries.shape[0], k)
    return queries.new_empty(shape), queries.new_empty(shape, dtype=torch.int64)


def _fake_cosine_rerank(queries: Tensor, vectors: Tensor, candidates: Tensor) -> Tensor:
    return queries.new_empty(candidates.shape, dtype=torch.float32)


for _op, _fake in (
    ("hash_keys", _fake_hash_keys),
    ("hamming_search", _fake_hamming_search),
    ("cosine_rerank", _fake_cosine_rerank),
):
    for _device in ("CPU", "CUDA"):
        _LIBRARY.impl(_op, _run(_op), _device)
    _library.register_fake(f"keynet::{_op}", _fake, lib=_LIBRARY)
