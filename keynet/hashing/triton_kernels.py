"""The hashing ops on a GPU by Triton; on a CPU where TRITON_INTERPRET=1 interprets its kernels."""

from __future__ import annotations

from torch import Tensor

from keynet.hashing.triton_keys import cosine_rerank, hash_keys
from keynet.hashing.triton_search import MATRIX_QUERIES, search

__all__ = ["cosine_rerank", "hamming_search", "hash_keys"]


def hamming_search(
    queries: Tensor,
    codes: Tensor,
    k: int,
    radius: int,
    query_scopes: Tensor | None = None,
    code_scopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return distances and indices of the k nearest; see ``reference``."""
    matrix = len(queries) >= MATRIX_QUERIES
    return search(queries, codes, k, radius, query_scopes, code_scopes, matrix)
