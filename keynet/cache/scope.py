"""The scope digest: one short word for everything that must match exactly.

Standard library alone, so that the loader may use it below the cache.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGEST_CHARACTERS = 32  # 128 bits: no two of 2^40 scopes meet by chance


def scope_digest(
    scope: Mapping[str, Any], has_image: bool, has_text: bool, folded: str | None = None
) -> str:
    """Return the digest of a scope and of the modalities present, 32 hex characters.

    The order of keys does not matter; 1, 1.0, true and "1" are four different values.

    Args:
        scope: Text, numbers, booleans, None, lists and mappings with text keys.
        has_image: Whether the request has an image; a text alone never meets an image + text.
        has_text: Whether the request has a text.
        folded: Digest of a text that the model saw only in part; it then must match exactly.

    Raises:
        ValueError: When the scope cannot be written as JSON; the message names the place.
    """
    content = {"scope": _plain(scope, "scope"), "image": has_image, "text": has_text}
    if folded is not None:
        content["folded"] = folded
    try:
        line = json.dumps(
            content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
    except UnicodeEncodeError as error:
        raise ValueError("scope is not Unicode (a lone surrogate); decode it first") from error
    return hashlib.sha256(line).hexdigest()[:DIGEST_CHARACTERS]


def _plain(value: Any, place: str, depth: int = 0) -> Any:
    """Return the value with mappings as dicts and tuples as lists, or say what JSON lacks."""
    if depth > 100:
        raise ValueError(f"{place[:60]}… is nested more than 100 deep; flatten it")
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if value - value != 0:  # NaN and infinities
            raise ValueError(f"{place} is {value}; give a finite number")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{place} has the key {key!r}; keys must be str")
        return {key: _plain(item, f"{place}[{key!r}]", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{place}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise ValueError(f"{place} is {type(value).__name__}; give text, numbers, lists or mappings")
