"""Responses as bytes: text, bytes, or what JSON can hold; never pickle."""

from __future__ import annotations

import json
from typing import Any

from keynet.cache.entry import CacheError

TEXT, BYTES, JSON = 0, 1, 2


def encoded(response: Any) -> tuple[int, bytes]:
    """Return the kind of a response and its bytes.

    Raises:
        CacheError: It would not come back as it is.
    """
    if type(response) is bytes:  # a class of one's own would come back as another
        return BYTES, response
    if type(response) is str:
        try:
            return TEXT, response.encode()
        except UnicodeEncodeError as error:
            raise CacheError(
                "response is not Unicode (a lone surrogate); decode it first, or give bytes"
            ) from error
    try:
        content = json.dumps(response, allow_nan=False, separators=(",", ":")).encode()
        same = _same(json.loads(content), response)
    except (TypeError, ValueError, RecursionError) as error:
        raise CacheError(
            f"response is {type(response).__name__} and cannot be stored ({error}); "
            "give text, bytes, or what JSON can hold"
        ) from error
    if not same:
        raise CacheError(
            f"response is {type(response).__name__} and JSON would change it (tuples, keys that "
            "are not text, classes of one's own); give lists, and mappings with text keys"
        )
    return JSON, content


def decoded(kind: int, content: bytes) -> Any:
    """Return the response of its bytes."""
    if kind == BYTES:
        return content
    return content.decode() if kind == TEXT else json.loads(content)


def _same(found: Any, given: Any) -> bool:
    """Whether what JSON gives back is what was given, types included."""
    if type(found) is not type(given):
        return False
    if isinstance(found, dict):
        return found.keys() == given.keys() and all(_same(found[k], given[k]) for k in found)
    if isinstance(found, list):
        return all(map(_same, found, given))
    return bool(found == given)
