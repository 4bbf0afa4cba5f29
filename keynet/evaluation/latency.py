"""Latency of the exported model on this machine, and its size."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from keynet.evaluation.records import Record, Sheet
from keynet.export.loader import KeyEncoder
from keynet.types import Request

WARM_UP = 3


def latency_records(
    encoder: KeyEncoder, requests: Sequence[Request], data: str, method: str
) -> list[Record]:
    """Return milliseconds from request to key: one request at a time, and a batch of 64.

    Args:
        encoder: The exported model.
        requests: Requests with image and text, 64 or more for the batch.
        data: Name of the data set.
        method: Name of the method.
    """
    records = []
    for size, rounds in ((1, len(requests)), (64, 5)):
        if len(requests) < size:
            continue
        elapsed = []
        for number in range(WARM_UP + rounds):
            first = number * size % (len(requests) - size + 1)
            start = time.perf_counter()
            encoder.encode(requests[first : first + size])
            elapsed.append((time.perf_counter() - start) * 1000)
        measured = elapsed[WARM_UP:]
        sheet = Sheet(data, "test", f"batch_{size}", method, encoder.space.bits)
        for percentile in (50, 99) if size == 1 else (50,):
            records.append(
                sheet.figure(
                    f"latency_ms_p{percentile}",
                    float(np.percentile(measured, percentile)),
                    n=len(measured),
                    unit="ms",
                )
            )
    return records
