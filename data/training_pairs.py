"""Requests as anchor, positive and negative, as other trainers and semantic routers read them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path

import numpy as np

from data.features import content_digest
from data.requests import image_identity, scope_identity
from keynet.types import Request

ROLES = ("anchor", "positive", "negative")
Triple = tuple[Request, Request, Request]


def training_triples(requests: Sequence[Request], seed: int = 0) -> Iterator[Triple]:
    """Return anchor, positive and negative, one triple for each distinct request that has both.

    The positive is the next distinct request of the group, the negative is of another group and as
    hard as can be: the same intent with another answer, else another question about the same
    picture, else any other. All three have the same modalities and are of one scope.

    Args:
        requests: With groups.
        seed: Of the negatives.
    """
    rng = np.random.default_rng(seed)
    distinct = list({(scope_identity(r), image_identity(r), r.text): r for r in requests}.values())
    members: dict[Hashable, dict[str | None, list[Request]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for request in distinct:
        for pool in _pools(request):
            members[pool][request.group].append(request)
    names = {pool: list(by_group) for pool, by_group in members.items()}
    met: dict[Hashable, int] = defaultdict(int)
    for anchor in distinct:
        pools = _pools(anchor)
        equivalent = members[pools[-1]][anchor.group]
        met[pools[-1], anchor.group] += 1  # members are in the order of ``distinct``
        pool = next((pool for pool in pools if len(names[pool]) > 1), None)
        if len(equivalent) < 2 or pool is None:
            continue
        positive = equivalent[met[pools[-1], anchor.group] % len(equivalent)]
        group = anchor.group
        while group == anchor.group:
            group = names[pool][int(rng.integers(len(names[pool])))]
        negatives = members[pool][group]
        yield anchor, positive, negatives[int(rng.integers(len(negatives)))]


def write_triples(triples: Iterator[Triple], path: Path) -> int:
    """Write JSON lines and return how many.

    ``{"anchor": TEXT, "positive": TEXT, "negative": TEXT}``, null where there is no text; with
    ``anchor_image`` and so on where there is a picture: its file, or ``sha256:`` and the digest of
    what is in no file.
    """
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for triple in triples:
            line = {role: request.text for role, request in zip(ROLES, triple, strict=True)}
            line |= {
                f"{role}_image": _named(request.image)
                for role, request in zip(ROLES, triple, strict=True)
                if request.image is not None
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            count += 1
    return count


def _pools(request: Request) -> list[Hashable]:
    """Return where negatives are looked for, the hardest first; the last holds all."""
    comparable = scope_identity(request), request.modalities
    pools: list[Hashable] = [("all", comparable)]
    if request.image is not None:
        pools.insert(0, ("picture", comparable, image_identity(request)))
    if request.intent is not None:
        pools.insert(0, ("intent", comparable, request.intent))
    return pools


def _named(image: bytes | str | Path | np.ndarray) -> str:
    if isinstance(image, (str, Path)):
        return str(image)
    return f"sha256:{content_digest(image).hex()}"
