"""Where Triton's kernels run: on a GPU, or interpreted on a CPU (TRITON_INTERPRET=1)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import triton

# As the decorators of the kernels see it when they are imported.
INTERPRETED: bool = triton.knobs.runtime.interpret


def running_on(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which kernels are launched on a device.

    Raises:
        ValueError: It is no GPU, and kernels are not interpreted.
    """
    if device.type == "cuda":
        return torch.cuda.device(device)
    if not INTERPRETED:
        raise ValueError(
            f"Triton's kernels do not run on {device}; set TRITON_INTERPRET=1 before Python "
            "starts, or leave KEYNET_HASHING unset"
        )
    return nullcontext()


def processors(device: torch.device) -> int:
    """Return how many multiprocessors a device has; an interpreter is one."""
    if device.type != "cuda":
        return 1
    found: int = torch.cuda.get_device_properties(device).multi_processor_count
    return found
