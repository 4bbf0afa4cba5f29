"""A training batch through the key model: by shares of the ranks, and in chunks where wanted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from keynet.training.ranks import gathered, ranks, share
from keynet.training.statistics import BatchStatistics
from keynet.types import KeyOutput, TrainingBatch


def encode(model: Any, batch: TrainingBatch, chunk: int | None = None) -> KeyOutput:
    """Return what the key model makes of a whole batch, of which each rank encodes its share.

    Pictures and texts are encoded by the rank whose batch has them, requests are fused by shares,
    and the hash head sees the keys of all, so that its statistics are those of the batch.

    Args:
        model: The key model.
        batch: Of ``data.datamodule.RequestBatches.share``.
        chunk: Rows at once, at most (pictures, then texts, then requests). Of a chunk only its
            vectors are kept, and its forward is repeated in the backward. None takes all at once.
            Statistics of BatchNorm in an encoder are then those of a chunk.

    Source: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup
    (GradCache), RepL4NLP 2021: vectors without a graph, the loss over all, then chunk by chunk with
    the same random numbers. Checkpoints in the graph do that within one backward.
    """
    image_features = gathered(_in_chunks(model.image_features, chunk, batch.images))
    text_features = gathered(_in_chunks(model.text_features, chunk, batch.tokens, batch.token_mask))
    text_mask = gathered(batch.token_mask.any(-1))[batch.text_index]
    own = share(len(batch.group))
    vectors = _in_chunks(
        model.vectors,
        chunk,
        image_features[batch.image_index[own]],
        text_features[batch.text_index[own]],
        batch.image_mask[own],
        text_mask[own],
    )
    output: KeyOutput = model.output(*map(gathered, vectors), batch.image_mask & text_mask)
    return output


def _in_chunks(function: Callable[..., Any], chunk: int | None, *inputs: Tensor) -> Any:
    if chunk is None:
        with BatchStatistics() if ranks()[1] > 1 else nullcontext():
            return function(*inputs)
    # Of nearly one size: BatchNorm takes no single row, which a rest may be.
    count = max(1, -(-len(inputs[0]) // chunk))
    parts = [
        checkpoint(function, *rows, use_reentrant=False, context_fn=_contexts)
        for rows in zip(*(torch.tensor_split(rows, count) for rows in inputs), strict=True)
    ]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return tuple(torch.cat(one) for one in zip(*parts, strict=True))


def _contexts() -> tuple[BatchStatistics, BatchStatistics]:
    return BatchStatistics(), BatchStatistics(update=False)
