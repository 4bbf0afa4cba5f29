"""Several processes that train one model: what each of them takes, and what all have together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def ranks() -> tuple[int, int]:
    """Return the number of this process and of all that train together; (0, 1) of one alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def leave() -> None:
    """Leave the others. A process that ends without it may be aborted by threads of gloo."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def share(count: int) -> slice:
    """Return which of ``count`` rows are this rank's; ``count`` is a multiple of the ranks."""
    rank, world = ranks()
    return slice(rank * count // world, (rank + 1) * count // world)


def gathered(rows: Tensor) -> Tensor:
    """Return the rows of all ranks [world * N, ...], in the order of ``share``.

    The gradient of a row is the sum over what all ranks make of it. Where every rank computes one
    loss from gathered rows, and gradients of parameters are averaged over ranks as
    ``DistributedDataParallel`` does, they are those of one process.

    Args:
        rows: [N, ...], of one shape on all ranks.
    """
    if ranks()[1] == 1:
        return rows
    if rows.dtype == torch.bool:  # unknown to gloo
        return gathered(rows.to(torch.uint8)).bool()
    found: Tensor = _Gather.apply(rows)
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        own = rows.contiguous()
        parts = [torch.empty_like(own) for _ in range(ranks()[1])]
        dist.all_gather(parts, own)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[share(len(total))]


@contextmanager
def own_random(step: int, device: torch.device) -> Iterator[None]:
    """Draw otherwise than other ranks do, and leave the generators, which agree, as they are.

    Without other ranks nothing changes.

    Args:
        step: Each has its own draws.
        device: Whose generator is left as it is, beside the CPU's.
    """
    rank, world = ranks()
    if world == 1:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(torch.initial_seed() + 1 + step * world + rank)
        yield
