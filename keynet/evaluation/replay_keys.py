"""What the requests of a replay are encoded to, once: kept in a folder between runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from keynet.evaluation import baselines
from keynet.evaluation.labels import Labels
from keynet.evaluation.report import write_whole
from keynet.export.loader import KeyEncoder
from keynet.progress import progress_bar
from keynet.types import Request

CHUNK = 64

Arrays = Mapping[str, np.ndarray]


def encoded_keys(
    encoder: KeyEncoder, requests: Sequence[Request], labels: Labels, folder: Path
) -> Arrays:
    """Return what a key model makes of requests.

    ``key`` [N, D], ``code`` uint8 [N, K/8], ``alignment`` [N] (NaN where a modality is absent), and
    ``image`` and ``text`` [N, C], zero where absent.

    Args:
        labels: Of the requests; its digests name what is kept.
        folder: Where to keep them, made if missing.
    """

    def make() -> dict[str, np.ndarray]:
        parts: dict[str, list[np.ndarray]] = {}
        for first in progress_bar(
            range(0, len(requests), CHUNK), desc="keys", unit_scale=CHUNK, leave=False
        ):
            batch = encoder.preprocessor(requests[first : first + CHUNK], first=first)
            out = encoder.run(*batch[:4])
            rows = {n: getattr(out, n).float().cpu().numpy() for n in ("key", "image", "text")}
            rows["alignment"] = out.alignment.float().cpu().numpy()
            rows["code"] = np.packbits((out.logits >= 0).cpu().numpy(), axis=1)
            for name, values in rows.items():
                parts.setdefault(name, []).append(values)
        return {name: np.concatenate(found) for name, found in parts.items()}

    return _kept(folder, f"keys-{encoder.space.fingerprint}", labels, make)


def encoded_parts(
    requests: Sequence[Request], labels: Labels, folder: Path, image_size: int
) -> Arrays:
    """Return the packaged encoders' vectors: ``image`` [N, 1280] and ``text`` [N, 384].

    Unit norm each, zero where the modality is absent.

    Args:
        image_size: Pixels a side for the image encoder.
    """

    def make() -> dict[str, np.ndarray]:
        images, texts = baselines.Lite0Features(image_size), baselines.MiniLMText()
        both = baselines.concat_l2(requests, images, texts)
        return {
            "image": baselines.unit_rows(both[:, : images.dim]),
            "text": baselines.unit_rows(both[:, images.dim :]),
        }

    return _kept(folder, f"parts-{image_size}", labels, make)


def _kept(
    folder: Path, what: str, labels: Labels, make: Callable[[], dict[str, np.ndarray]]
) -> Arrays:
    content = hashlib.sha256("\n".join(labels.exact.tolist()).encode()).hexdigest()[:16]
    path = folder / f"{what}-{content}.safetensors"
    if path.exists():
        try:
            return load(path.read_bytes())
        except SafetensorError as error:
            raise ValueError(
                f"{path} is damaged ({error}); remove it, and it is made again"
            ) from error
    found = make()
    write_whole(path, save({name: np.ascontiguousarray(rows) for name, rows in found.items()}))
    return found
