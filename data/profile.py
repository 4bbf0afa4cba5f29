"""What is in the requests of a data source, and what a cache could save of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.requests import image_identity, scope_identity
from keynet.cache.scope import scope_digest
from keynet.types import Request

LANGUAGES = 8  # the commonest are counted by name
EXACT, ORACLE = "exact", "oracle"


@dataclass(frozen=True)
class Figure:
    """One figure.

    Args:
        what: ``requests``, ``groups``, ``saved_requests``, ...
        value: Of it; None where the data do not say.
        n: What a share is of, else what was counted over.
        unit: ``share``, or what is counted.
        cache: That saves it: ``exact`` answers equal bytes, text and scope, ``oracle`` (a perfect
            key) an equal group in the same scope; "" for what is no saving.
    """

    what: str
    value: float | None
    n: int
    unit: str
    cache: str = ""


def profile(requests: Sequence[Request]) -> list[Figure]:
    """Return the figures of requests; the tags ``conversation``, ``language`` and ``tokens`` count.

    A cache saves what was answered before, when it keeps all and nothing expires.
    """
    n = len(requests)

    def count(what: str, values: Sequence[Hashable]) -> Figure:
        known = {value for value in values if value is not None}
        return Figure(what, len(known) if known else None, n, what)

    def share(what: str, matching: int) -> Figure:
        return Figure(what, matching / n if n else None, n, "share")

    scopes = [scope_digest(r.scope, r.image is not None, r.text is not None) for r in requests]
    modalities = Counter(r.modalities for r in requests)
    languages = Counter(r.tags["language"] for r in requests if "language" in r.tags)
    images = {image_identity(r): r.image for r in requests if r.image is not None}
    sizes = [size for image in images.values() if (size := _size(image)) is not None]
    lengths = [len(text) for text in {r.text for r in requests if r.text is not None}]
    scoped = list(zip(scopes, requests, strict=True))
    verbatim = [(scope, image_identity(r), r.text) for scope, r in scoped]
    equivalent = [(scope, r.group) for scope, r in scoped]
    groups = Counter(equivalent)
    return [
        Figure("requests", n, n, "requests"),
        *(share(name, modalities[name]) for name in ("image+text", "image", "text")),
        *(share(f"language:{name}", k) for name, k in languages.most_common(LANGUAGES)),
        count("scopes", [scope_identity(r) for r in requests]),
        count("conversations", [r.tags.get("conversation") for r in requests]),
        count("pictures", list(images)),
        Figure("picture_bytes_p50", _median(sizes), len(sizes), "bytes"),
        Figure("picture_bytes_most", max(sizes, default=None), len(sizes), "bytes"),
        count("texts", [r.text for r in requests]),
        Figure("text_characters_p50", _median(lengths), len(lengths), "characters"),
        Figure("text_characters_most", max(lengths, default=None), len(lengths), "characters"),
        count("groups", [one for one in equivalent if one[1] is not None]),
        share("in_groups_of_several", sum(k for k in groups.values() if k > 1)),
        *_saved(EXACT, verbatim, requests),
        *_saved(ORACLE, equivalent, requests),
    ]


def most_distinct_served(requests: Sequence[Request]) -> int:
    """Return how many different questions a perfect key can serve, each at least once.

    Requests with picture and text, with one of them alone: each is a cache with a threshold of its
    own, and the one that serves most counts. Different is what has another group, or another
    picture, or text where there is none, as in ``keynet.evaluation.closed_loop``.
    """
    asked: dict[tuple[str, Hashable], Counter[Hashable]] = defaultdict(Counter)
    for r in requests:
        thing = r.text if r.image is None else image_identity(r)
        asked[r.modalities, (scope_identity(r), r.group)][thing] += 1
    most: Counter[str] = Counter()
    for (modalities, _), things in asked.items():
        # The first of a group is served nothing.
        most[modalities] += min(len(things), things.total() - 1)
    return max(most.values(), default=0)


def _saved(cache: str, keys: Sequence[Hashable], requests: Sequence[Request]) -> list[Figure]:
    """Return the shares of the requests, and of the tokens, whose key has come before."""
    seen: set[Hashable] = set()
    saved = []
    for key in keys:
        saved.append(key in seen)
        seen.add(key)
    tokens = [int(r.tags.get("tokens", 0)) for r in requests]
    spared = sum(t for t, hit in zip(tokens, saved, strict=True) if hit)
    n, total = len(requests), sum(tokens)
    return [
        Figure("saved_requests", sum(saved) / n if n else None, n, "share", cache),
        Figure("saved_tokens", spared / total if total else None, total, "share", cache),
    ]


def _median(values: Sequence[int]) -> float | None:
    return float(np.median(values)) if values else None


def _size(image: bytes | str | Path | np.ndarray | None) -> int | None:
    """Return the bytes of an encoded picture; None for pixels."""
    if isinstance(image, bytes):
        return len(image)
    return Path(image).stat().st_size if isinstance(image, (str, Path)) else None
