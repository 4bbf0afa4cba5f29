"""Keys whose picture and text are not in one space: what misalignment costs (C1)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from keynet.replay.neighbours import Floats

WAYS: Mapping[str, str] = {
    "aligned": "picture and text as the key model aligned them",
    "rotated": "every picture's vector turned by one random rotation",
    "half_rotated": "the vectors of a random half of the requests' pictures turned",
    "shuffled": "every picture's vector with its coordinates in an order of its own",
}


def fused_keys(image: Floats, text: Floats, way: str = "aligned", seed: int = 0) -> Floats:
    """Return the mean of picture and text at unit norm, the picture misaligned in one way.

    Args:
        image: float32 [N, C], unit rows, zero where absent.
        text: float32 [N, C].
        way: One of ``WAYS``.
        seed: Of the rotation, the half and the orders.

    Raises:
        ValueError: The way is not known, or a row has neither picture nor text.
    """
    if way not in WAYS:
        raise ValueError(f"no misalignment {way!r}; known are {', '.join(WAYS)}")
    rng = np.random.default_rng(seed)
    count, dim = image.shape
    if way in ("rotated", "half_rotated"):
        q, r = np.linalg.qr(rng.standard_normal((dim, dim)))
        turned = (image @ (q * np.sign(np.diag(r)))).astype(np.float32)
        kept = rng.random((count, 1)) >= (1.0 if way == "rotated" else 0.5)
        image = np.where(kept, image, turned)
    elif way == "shuffled":
        image = np.take_along_axis(image, rng.random((count, dim)).argsort(axis=1), axis=1)
    both = image + text
    norm = np.linalg.norm(both, axis=1, keepdims=True)
    if not (norm > 0).all():
        raise ValueError(f"request {int((norm[:, 0] <= 0).argmax())} has no picture and no text")
    found: Floats = (both / norm).astype(np.float32)
    return found
