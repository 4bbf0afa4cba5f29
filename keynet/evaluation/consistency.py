"""Consistency of codes (K3): bits and whole codes that stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from keynet.evaluation.records import Record, Sheet
from keynet.export.loader import KeyEncoder
from keynet.pictures import open_image
from keynet.types import Request

BATCH_SIZES = (1, 7, 64)
Perturb = Callable[[Image.Image], dict[str, bytes]]


def consistency_records(
    encoder: KeyEncoder, requests: Sequence[Request], perturb: Perturb, data: str, method: str
) -> list[Record]:
    """Return consistency_bits and consistency_codes by perturbation and batch size.

    Args:
        encoder: The exported model.
        requests: Those with an image are perturbed.
        perturb: A decoded picture to perturbation names and encoded bytes.
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
    pictured = [i for i, request in enumerate(requests) if request.image is not None]
    changed: dict[str, list[Request]] = {}
    for request in requests:
        if request.image is not None:
            for name, image in perturb(open_image(request.image)).items():
                changed.setdefault(name, []).append(replace(request, image=image))
    for name, perturbed in changed.items():
        variants[name] = codes[pictured], encoder.encode_arrays(perturbed)[1]
    records = []
    for name, (before, after) in variants.items():
        sheet = Sheet(data, "test", f"consistency:{name}", method, encoder.space.bits)
        same = np.unpackbits(before ^ after, axis=1) == 0
        records += [
            sheet.figure("consistency_bits", float(same.mean()), n=same.size),
            sheet.share("consistency_codes", int(same.all(1).sum()), len(same)),
        ]
    return records
