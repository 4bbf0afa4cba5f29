"""Distances between codes of which each modality has a part, weighted by how sure each is.

Weights act when codes are compared: what is stored never changes with them. ``blocks`` says which
bits a modality has, as ``{"image": (0, 64), "text": (64, 128)}`` in whole bytes.

Source: SPEC K5. It weighs the code itself; here it is the distance, so that a request hashes to the
same code whatever the traffic around it is like.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Counts = NDArray[np.uint16]
Blocks = Mapping[str, tuple[int, int]]

WORDS = tuple(np.dtype(f"u{size}") for size in (8, 4, 2, 1))  # widest first


def hamming(query: Codes, codes: Codes) -> Counts:
    """Return in how many bits each code differs from the query.

    Args:
        query: [B], or Q of them [Q, B].
        codes: [N, B].

    Returns:
        [N], or [Q, N].

    Raises:
        ValueError: When a code is not of bytes, or the lengths differ.
    """
    _check_codes(query, codes)
    return _differing(query, codes, 0, codes.shape[1])


def weighted_distance(
    query: Codes, codes: Codes, blocks: Blocks, weights: Mapping[str, float | Floats]
) -> Floats:
    """Return the weighted mean over the modalities of the share of bits in which codes differ.

    Args:
        query: [B], or [Q, B].
        codes: [N, B].
        blocks: First and end bit of each modality.
        weights: Of each modality, at least 0; of Q queries each its own as [Q] if wanted. 0 masks a
            modality: of one that the query lacks, whose bits say nothing.

    Returns:
        [N] or [Q, N], in [0, 1].

    Raises:
        ValueError: When a weight is missing, unknown, negative or not finite, or all are 0.
    """
    if set(weights) != set(blocks):
        raise ValueError(
            f"weights of {', '.join(sorted(weights)) or 'nothing'}, codes of "
            f"{', '.join(sorted(blocks))}; give each modality one weight, 0 where it is absent"
        )
    by_name = {name: np.asarray(weight, dtype=np.float64) for name, weight in weights.items()}
    for name, weight in by_name.items():
        if weight.shape not in ((), query.shape[:-1]):
            raise ValueError(
                f"weights of {name} have shape {weight.shape}, expected one weight or "
                f"{query.shape[:-1]}, one a query"
            )
        if not (np.isfinite(weight) & (weight >= 0)).all():
            raise ValueError(f"weight of {name} is {weight}; give finite weights of at least 0")
    total = np.asarray(sum(by_name.values()))
    if (total <= 0).any():
        raise ValueError(
            "all weights are 0, so every code would be at distance 0; weigh a modality that the "
            "query has"
        )
    _check_codes(query, codes)
    found = np.zeros((*query.shape[:-1], len(codes)))
    for name, (first, end) in _bytes_of(blocks, codes.shape[1]).items():
        # The share and the weight in one factor: one pass over the distances.
        factor = np.asarray(by_name[name] / total / (8.0 * (end - first)))
        found += factor[..., None] * _differing(query, codes, first, end)
    return found


def confidence(logits: NDArray[np.floating]) -> Floats:
    """Return how sure a modality is of its bits: mean |tanh(logit)| over its block, in [0, 1].

    Args:
        logits: [..., k], a query's own, of one modality.

    Raises:
        ValueError: When there is no logit, or one is not finite.
    """
    values = np.asarray(logits, dtype=np.float64)
    if not values.ndim or not values.shape[-1]:
        raise ValueError(f"logits have shape {values.shape}; give at least one a modality")
    if not np.isfinite(values).all():
        raise ValueError("logits contain NaN or infinity; give those of a query with the modality")
    return np.asarray(np.abs(np.tanh(values)).mean(axis=-1))


def _differing(query: Codes, codes: Codes, first: int, end: int) -> Counts:
    """Hamming distances by the bytes ``first`` to ``end``, a word at a time, without a copy."""
    parts = codes.shape[1], first, end
    word = next(w for w in WORDS if all(part % w.itemsize == 0 for part in parts))
    asked: NDArray[np.unsignedinteger] = np.ascontiguousarray(query).view(word)
    stored: NDArray[np.unsignedinteger] = np.ascontiguousarray(codes).view(word)
    found = np.zeros((*query.shape[:-1], len(codes)), dtype=np.uint16)
    for column in range(first // word.itemsize, end // word.itemsize):
        found += np.bitwise_count(asked[..., column, None] ^ stored[:, column])
    return found


def _check_codes(query: Codes, codes: Codes) -> None:
    if query.dtype != np.uint8 or codes.dtype != np.uint8:
        raise ValueError(
            f"codes are {query.dtype} and {codes.dtype}, expected uint8; pack bits by np.packbits"
        )
    if codes.ndim != 2 or query.ndim not in (1, 2) or query.shape[-1] != codes.shape[-1]:
        raise ValueError(
            f"query {query.shape} and codes {codes.shape} do not fit; give [B] or [Q, B], and "
            "[N, B], of one hash"
        )
    if not codes.shape[1]:
        raise ValueError("codes have no bytes; give codes of at least 8 bits")


def _bytes_of(blocks: Blocks, width: int) -> dict[str, tuple[int, int]]:
    found = {}
    for name, (first, end) in blocks.items():
        if not 0 <= first < end <= 8 * width or first % 8 or end % 8:
            raise ValueError(
                f"block of {name} is {(first, end)}; give first and end bit in whole bytes, of a "
                f"code of {8 * width} bits"
            )
        found[name] = (first // 8, end // 8)
    return found
