"""Consistency of codes (K3): bits and whole codes that stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from keynet.evaluation.records import Record, Sheet
from keynet.export.loader import KeyEncoder
from keynet.types import Request

BATCH_SIZES = (1, 7, 64)
Perturb = Callable[[Request], dict[str, Request]]


def consistency_records(
    encoder: KeyEncoder, requests: Sequence[Request], perturb: Perturb, data: str, method: str
) -> list[Record]:
    """Return consistency_bits and consistency_codes by perturbation and batch size.

    Args:
        encoder: The exported model.
        requests: Some requests.
        perturb: A request to perturbation names and the request under each.
        data: Name of the data set.
        method: Name of the method.
    """
    if not requests:
        return []
    codes = encoder.encode_arrays(requests, batch_size=64)[1]
    variants: dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = {}
    for size in BATCH_SIZES[:2]:
        variants[f"batch_{size}_against_64"] = (
            codes,
            encoder.encode_arrays(requests, batch_size=size)[1],
        )
    changed: dict[str, dict[int, Request]] = {}
    for number, request in enumerate(requests):
        for name, other in perturb(request).items():
            changed.setdefault(name, {})[number] = other
    for name, others in changed.items():
        variants[name] = codes[list(others)], encoder.encode_arrays(list(others.values()))[1]
    records = []
    for name, (before, after) in variants.items():
        sheet = Sheet(data, "test", f"consistency:{name}", method, encoder.space.bits)
        same = np.unpackbits(before ^ after, axis=1) == 0
        records += [
            sheet.figure("consistency_bits", float(same.mean()), n=same.size),
            sheet.share("consistency_codes", int(same.all(1).sum()), len(same)),
        ]
    return records
