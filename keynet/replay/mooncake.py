"""Traces of requests to a language model as Mooncake published them: JSON lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from keynet.replay.jsonl_trace import field, json_lines, number_field
from keynet.replay.trace import TraceError, Visit, in_order

PREFIX_BLOCKS = 2
BYTES_A_TOKEN = 4


def read_mooncake(path: Path) -> Iterator[Visit]:
    """Yield the visits of a trace.

    The object is the prompt's first ``PREFIX_BLOCKS`` blocks of 512 tokens: the first is a system
    prompt that all share, whole prompts hardly ever come twice. The cost is the number of tokens
    read and written, the size what is written at ``BYTES_A_TOKEN``.

    Raises:
        TraceError: A line lacks a field, is of another type or out of order; there is no line.
        OSError: The file cannot be read.

    Source: Qin et al., Mooncake (FAST 2025), the published traces: ``timestamp`` in ms,
    ``input_length``, ``output_length``, and ``hash_ids`` of the blocks of the prompt.
    """
    yield from in_order(path, _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, Visit]]:
    for number, row in json_lines(path):
        time = number_field(path, number, row, "timestamp") / 1000
        read = number_field(path, number, row, "input_length", whole=True)
        written = number_field(path, number, row, "output_length", whole=True)
        blocks = field(path, number, row, "hash_ids")
        if not isinstance(blocks, list) or not all(type(block) is int for block in blocks):
            raise TraceError(
                f"{path}, line {number}: hash_ids is {str(blocks)[:60]}; expected whole numbers"
            )
        prefix = ",".join(map(str, blocks[:PREFIX_BLOCKS])).encode()
        asked = int.from_bytes(hashlib.blake2b(prefix, digest_size=8).digest(), "big")
        size = max(1, BYTES_A_TOKEN * int(written))
        yield number, Visit(time, asked, size, float(read + written))
