"""Encode, hash and look up as one CUDA graph: a launch instead of hundreds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from keynet.hashing.ops import hamming_search, hash_keys, words
from keynet.types import KeyOutput, RequestBatch

WARM_UPS = 3  # kernels are compiled and the model's own buffers made before a graph is captured
log = logging.getLogger(__name__)


class Found(NamedTuple):
    """What a lookup returns of B requests."""

    key: Tensor  # [B, D], unit norm
    norms: Tensor  # float32 [B]; what is found for a key of norm 0, NaN or infinity is void
    code: Tensor  # int32 words [B, K/32]
    distances: Tensor  # int32 [B, k]
    indices: Tensor  # int64 [B, k], rows of the store


class CapturedLookup:
    """Looks up batches of one size in a store; ``captured`` says whether as a CUDA graph.

    On a GPU a call overwrites what the last one returned. Without one the same steps run in turn.

    Args:
        model: Images, image mask, tokens and token mask to ``KeyOutput``, or a tuple in its order.
        hash_matrix: W float32 [K, D] and b float32 [K].
        codes: int32 [N, K/32], the store; what is written into it later is found.
        code_scopes: int32 [N], its scopes, likewise; each call then gives those of its requests.
        k: How many to find.
        batch: Any batch of the size and device of those to come.
        radius: Greatest distance; None is any.

    Raises:
        ValueError: Shapes or types do not fit, or a key of the batch is zero.
    """

    def __init__(
        self,
        model: Callable[[Tensor, Tensor, Tensor, Tensor], KeyOutput],
        hash_matrix: tuple[Tensor, Tensor],
        codes: Tensor,
        k: int,
        batch: RequestBatch,
        radius: int | None = None,
        code_scopes: Tensor | None = None,
    ) -> None:
        self._model, self._hash_matrix, self._codes = model, hash_matrix, codes
        bits = 32 * codes.shape[1]
        self._k, self._radius = k, bits if radius is None else min(radius, bits)
        self._code_scopes, self._scopes = code_scopes, None
        self._inputs = tuple(tensor.clone() for tensor in batch[:4])
        if code_scopes is not None:
            self._scopes = code_scopes.new_zeros(len(batch[0]))
        self.captured = codes.device.type == "cuda"
        with torch.inference_mode():
            # Once by the functions that check; a lookup takes the ops, which do not wait.
            key = KeyOutput(*model(*self._inputs)).key
            code = words(hash_keys(key, *hash_matrix))
            hamming_search(code, codes, k, radius, self._scopes, code_scopes)
            if self.captured:
                self._capture()
            else:
                log.warning("no CUDA device: lookups run step by step, not as a graph")

    def __call__(self, batch: RequestBatch, scopes: Tensor | None = None) -> Found:
        """Return what was found, of int32 [B] ``scopes`` alone where the store has scopes.

        Raises:
            ValueError: The batch or its scopes are of another shape or type.
        """
        if (scopes is None) != (self._scopes is None):
            raise ValueError("scopes of requests go with code_scopes; give both or neither")
        if scopes is not None and (scopes.dtype, len(scopes)) != (torch.int32, len(batch[0])):
            raise ValueError(
                f"scopes are {scopes.dtype} {list(scopes.shape)}; expected int32 [{len(batch[0])}]"
            )
        for name, given, own in zip(RequestBatch._fields, batch, self._inputs, strict=False):
            if given.shape != own.shape or given.dtype != own.dtype:
                raise ValueError(
                    f"{name} are {given.dtype} {list(given.shape)}; this lookup is for "
                    f"{own.dtype} {list(own.shape)}: pad the batch, or make another lookup"
                )
        with torch.inference_mode():
            if scopes is not None and self._scopes is not None:
                self._scopes.copy_(scopes)
            if not self.captured:
                return self._steps(*(tensor.to(self._codes.device) for tensor in batch[:4]))
            for own, given in zip(self._inputs, batch, strict=False):
                own.copy_(given)
            self._graph.replay()
            return self._found

    def _steps(self, *inputs: Tensor) -> Found:
        key = KeyOutput(*self._model(*inputs)).key
        packed, norms = torch.ops.keynet.hash_keys(key, *self._hash_matrix)
        code = words(packed)
        found = torch.ops.keynet.hamming_search(
            code, self._codes, self._k, self._radius, self._scopes, self._code_scopes
        )
        return Found(key, norms, code, *found)

    def _capture(self) -> None:
        with torch.cuda.device(self._codes.device):
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(WARM_UPS):
                    self._steps(*self._inputs)
            torch.cuda.current_stream().wait_stream(beside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._found = self._steps(*self._inputs)
