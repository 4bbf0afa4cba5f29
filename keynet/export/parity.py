"""How far the codes of one key model agree, whatever runs it: format, batch, threads, precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from keynet.export.manifest import Parity
from keynet.preprocess import Preprocessor
from keynet.types import Request, RequestBatch

CHUNK = 64
CERTAIN = 1e-4  # |logit| from which on a flipped bit is no rounding


@dataclass(frozen=True)
class Variant:
    """One way to run a key model.

    Args:
        logits: ``logits(images, image_mask, tokens, token_mask)`` returns float32 [B, K].
        batch_size: Requests at once; texts are padded to the longest among them.
        threads: Of torch.
    """

    logits: Callable[..., Tensor]
    batch_size: int = CHUNK
    threads: int = 1


@dataclass
class _Count:
    bits: int = 0
    codes: int = 0
    most: int = 0
    margin: float = 0.0
    certain: int = 0


def measure_parity(
    reference: Variant,
    variants: Mapping[str, Variant],
    preprocessor: Preprocessor,
    requests: Sequence[Request],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Parity]:
    """Return how each variant's codes differ from the reference's.

    Args:
        reference: What the others are compared with.
        variants: By name.
        preprocessor: Of the export.
        requests: At least one.
        progress: Told how many requests are done, of how many.

    Raises:
        ValueError: There are no requests, or logits that cannot be compared.
    """
    if not requests:
        raise ValueError("parity needs requests to compare codes on; there are none")
    counts = {name: _Count() for name in variants}
    threads, width = torch.get_num_threads(), 0
    try:
        for first in range(0, len(requests), CHUNK):
            batch = preprocessor(requests[first : first + CHUNK], first=first)
            wanted = _run(reference, batch)
            width = wanted.shape[1]
            for name, variant in {"the model": reference, **variants}.items():
                got = wanted if variant is reference else _run(variant, batch)
                if got.shape != wanted.shape or not bool(torch.isfinite(got).all()):
                    raise ValueError(
                        f"{name} gives logits {list(got.shape)} that are not finite, or not "
                        f"{list(wanted.shape)}, in requests {first} to {first + len(wanted) - 1}"
                    )
                if variant is not reference:
                    _add(counts[name], wanted, got)
            progress(first + len(wanted), len(requests))
    finally:
        torch.set_num_threads(threads)
    return [
        Parity(
            variant=name,
            requests=len(requests),
            flipped_bits=count.bits / (len(requests) * width),
            flipped_certain_bits=count.certain,
            changed_codes=count.codes / len(requests),
            most_flips=count.most,
            margin=count.margin,
        )
        for name, count in counts.items()
    ]


def _run(variant: Variant, batch: RequestBatch) -> Tensor:
    torch.set_num_threads(variant.threads)
    found = []
    for first in range(0, len(batch.tokens), variant.batch_size):
        rows = slice(first, first + variant.batch_size)
        mask = batch.token_mask[rows]
        length = max(1, int(mask.sum(1).max()))  # texts are padded on the right
        tokens = batch.tokens[rows, :length].contiguous()
        given = (batch.images[rows], batch.image_mask[rows], tokens, mask[:, :length].contiguous())
        with torch.inference_mode():
            found.append(variant.logits(*given).float())
    return torch.cat(found)


def _add(count: _Count, wanted: Tensor, got: Tensor) -> None:
    flipped = (wanted >= 0) != (got >= 0)  # [B, K]
    each = flipped.sum(1)
    count.bits += int(each.sum())
    count.codes += int((each > 0).sum())
    count.most = max(count.most, int(each.max()))
    if bool(flipped.any()):
        margins = wanted[flipped].abs()
        count.margin = max(count.margin, float(margins.max()))
        count.certain += int((margins >= CERTAIN).sum())
