"""What a data source says about its requests, as arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from keynet.cache.scope import scope_digest
from keynet.types import Request

Ints = NDArray[np.int64]
Strings = NDArray[np.str_]


@dataclass(frozen=True)
class Labels:
    """Labels of N requests; integers compare within one ``Labels`` only.

    Args:
        group: Equal = equivalent, and of one scope.
        scope: Digest of what must match exactly, the modalities present included.
        picture: Picture file, from tag ``picture``; -1 without image.
        entity: What the picture shows; -1 where not given.
        intent: Canonical question; -1 where not given.
        phrasing: From tag ``phrasing``; -1 where not given.
        kind_of_intent: From tag ``family``: ``name``, ``is_kind``, ``is_not_kind``, ...
        negated: From tag ``negated``, "1" is true.
        argument: From tag ``argument``.
        vendor: From tag ``vendor``.
        response: The true answer.
        modalities: ``image+text``, ``image`` or ``text``.
        tokens: Of prompt and answer together, from tag ``tokens``; 0 where not given.
        content: Digest of image bytes and text, in whatever scope.
        exact: Digest of scope, image bytes and text; equal = verbatim repeat.
    """

    group: Ints
    scope: Strings
    picture: Ints
    entity: Ints
    intent: Ints
    phrasing: Ints
    kind_of_intent: Strings
    negated: NDArray[np.bool_]
    argument: Strings
    vendor: Strings
    response: Strings
    modalities: Strings
    tokens: Ints
    content: Strings
    exact: Strings

    def __len__(self) -> int:
        return len(self.group)

    def take(self, index: NDArray[np.generic]) -> Labels:
        """Labels of the requests at ``index`` (integers or a mask)."""
        return Labels(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def require_one_scope(self, what: str) -> None:
        """Raise ValueError where requests of the same modalities have several scopes."""
        if len(set(self.scope.tolist())) > len(set(self.modalities.tolist())):
            raise ValueError(
                f"{what} compares all requests, and these have several scopes (models, tenants, "
                "system prompts); give data of one scope, or judge it with scripts.evaluate"
            )

    @staticmethod
    def of(requests: Sequence[Request]) -> Labels:
        """Labels of ``requests``; raises ValueError where one has no group."""
        for index, request in enumerate(requests):
            if request.group is None:
                raise ValueError(f"request {index} has no group; without it no hit can be judged")

        def tag(name: str) -> list[str | None]:
            return [r.tags.get(name) for r in requests]

        def strings(values: Sequence[str | None]) -> Strings:
            return np.array([v or "" for v in values], dtype=np.str_)

        pictures = [
            (r.tags.get("picture") or f"file:{_digest(r, text=False)}")
            if r.image is not None
            else None
            for r in requests
        ]
        scopes = [scope_digest(r.scope, r.image is not None, r.text is not None) for r in requests]
        content = [_digest(r) for r in requests]
        return Labels(
            group=_numbers([f"{s} {r.group}" for s, r in zip(scopes, requests, strict=True)]),
            scope=strings(scopes),
            picture=_numbers(pictures),
            entity=_numbers([r.entity for r in requests]),
            intent=_numbers([r.intent for r in requests]),
            phrasing=_numbers(tag("phrasing")),
            kind_of_intent=strings(tag("family")),
            negated=np.array([value == "1" for value in tag("negated")], dtype=bool),
            argument=strings(tag("argument")),
            vendor=strings(tag("vendor")),
            response=strings([r.response for r in requests]),
            modalities=strings([r.modalities for r in requests]),
            tokens=np.array([int(value or 0) for value in tag("tokens")], dtype=np.int64),
            content=strings(content),
            exact=strings([f"{s} {c}" for s, c in zip(scopes, content, strict=True)]),
        )


def _numbers(values: Sequence[str | None]) -> Ints:
    number: dict[str, int] = {}
    return np.array(
        [-1 if v is None else number.setdefault(v, len(number)) for v in values], dtype=np.int64
    )


def _digest(request: Request, text: bool = True) -> str:
    digest = hashlib.sha256()
    image = request.image
    if isinstance(image, np.ndarray):
        digest.update(f"array {image.dtype} {image.shape}".encode())
        digest.update(np.ascontiguousarray(image).tobytes())
    elif isinstance(image, bytes):
        digest.update(b"bytes")
        digest.update(image)
    elif image is not None:
        digest.update(b"bytes")
        digest.update(Path(image).read_bytes())
    # A separator, so that no end of an image reads as the start of a text.
    digest.update(b"\0text\0")
    if text and request.text is not None:
        digest.update(request.text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
