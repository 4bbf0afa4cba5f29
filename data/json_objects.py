"""JSON objects whose keys are all different."""

from __future__ import annotations

from typing import Any


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of its keys and values: ``json.loads(..., object_pairs_hook=unique_keys)``.

    Raises:
        ValueError: A key comes twice, so that one of its values would be lost.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} comes twice")
    return found
