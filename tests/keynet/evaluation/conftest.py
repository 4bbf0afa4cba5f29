"""A toy data set of pictures by two vendors, asked in many phrasings, and a toy encoder."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from PIL import Image

from keynet.evaluation.labels import Labels
from keynet.types import KeySpace, Request


def toy_requests(seed: int = 0, entities: int = 120, visits: int = 8) -> list[Request]:
    rng = np.random.default_rng(seed)
    requests = []
    for entity in range(entities):
        for vendor in "AB":
            for visit in range(visits):
                family = str(rng.choice(["name", "kind", "is_kind", "is_not_kind"]))
                language = str(rng.choice(["en", "fr"]))
                phrasing = f"{language}/{family}/{rng.integers(4)}"
                shown, asked = entity % 3, int(rng.integers(3))
                answers = {
                    "name": str(entity),
                    "kind": str(shown),
                    "is_kind": str(shown == asked),
                    "is_not_kind": str(shown != asked),
                }
                argument = str(asked) if family.startswith("is") else ""
                intent = f"{family}({argument})|{language}"
                requests.append(
                    Request(
                        image=f"{entity} {vendor} {visit}".encode(),
                        text=f"{phrasing} {argument}",
                        response=answers[family],
                        group=f"{intent}|{answers[family]}",
                        entity=str(entity),
                        intent=intent,
                        tags={
                            "picture": f"{vendor}/{entity}",
                            "vendor": vendor,
                            "family": family,
                            "phrasing": phrasing,
                            "negated": str(int(family == "is_not_kind")),
                            "argument": argument,
                        },
                    )
                )
            requests.append(
                Request(
                    image=f"{entity} {vendor} alone".encode(),
                    group=f"describe|{entity}",
                    entity=str(entity),
                    intent="describe",
                    response=str(entity),
                    tags={"picture": f"{vendor}/{entity}", "vendor": vendor, "family": "describe"},
                )
            )
    texts = {r.text: r for r in requests if r.text is not None}
    requests += [
        Request(text=text, response="no picture", group=f"text|{r.intent}", intent=r.intent)
        for text, r in texts.items()
    ]
    return requests


def group_keys(labels: Labels, seed: int = 0, noise: float = 0.0) -> np.ndarray:
    """A random unit row a group, with noise of that size."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(int(labels.group.max()) + 1, 64))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    rows = keys[labels.group] + noise / 8 * rng.normal(size=(len(labels), 64))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="session")
def labels() -> Labels:
    return Labels.of(toy_requests())


@pytest.fixture(scope="session")
def other_labels() -> Labels:
    return Labels.of(toy_requests(seed=1))


@pytest.fixture(scope="session")
def keys_of() -> Callable[..., np.ndarray]:
    return group_keys


class FakeEncoder:
    """Keys are a hash: equal mean colour (in steps of ``coarseness``) and text give equal keys."""

    num_parameters = 7
    code_lengths = (64, 128)

    def __init__(self, coarseness: int = 64) -> None:
        self.coarseness = coarseness
        self.space = KeySpace("fake", 1, 32, 128, "0" * 16)

    def encode_arrays(
        self, requests: Sequence[Request], batch_size: int = 64
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        vectors, codes = [], []
        for request in requests:
            seen = b"none"
            if request.image is not None:
                pixels = np.asarray(Image.open(io.BytesIO(request.image)).convert("RGB"))
                seen = str(pixels.mean((0, 1)).round() // self.coarseness).encode()
            rng = np.random.default_rng(zlib.crc32(seen + (request.text or "").encode()))
            vector = rng.standard_normal(self.space.dim).astype(np.float32)
            vectors.append(vector / np.linalg.norm(vector))
            codes.append(np.packbits(rng.random(self.space.bits) < 0.5))
        return np.stack(vectors), np.stack(codes), np.full(len(requests), np.nan, np.float32)

    def encode(self, requests: Sequence[Request], batch_size: int = 64) -> list[int]:
        self.encode_arrays(requests, batch_size)
        return [0] * len(requests)


@pytest.fixture(scope="session")
def fake_encoder() -> FakeEncoder:
    return FakeEncoder()
