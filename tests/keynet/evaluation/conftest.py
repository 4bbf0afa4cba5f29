"""A toy data set: pictures of entities by two vendors, asked in families, languages, phrasings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from keynet.evaluation.labels import Labels
from keynet.types import Request


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
