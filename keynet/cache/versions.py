"""Versions at several grains: raising one makes the entries of that grain unreachable, and no more.

An entry remembers the version of every grain that its request named. Versions above 0 are folded
into the scope digest under which the entry is stored and looked up, so that what was stored before
a raise is never found again; it is removed later, or at once: see ``SemanticCache.raise_version``.

Source: SPEC K6.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from keynet.cache.scope import DIGEST_CHARACTERS

KEY_SPACE = "key_space"
SCOPE_GRAINS = ("scene", "device", "user")  # fields of a request's scope
GRAINS = (KEY_SPACE, *SCOPE_GRAINS)


class Stamp(NamedTuple):
    """The version of one grain.

    Args:
        grain: One of ``GRAINS``.
        name: Which scene, device, user or key space.
        version: From 0 on.
    """

    grain: str
    name: str
    version: int


def named_grains(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the grains that a request's scope names.

    Raises:
        ValueError: One is named by something else than text.
    """
    found = {grain: scope[grain] for grain in SCOPE_GRAINS if scope.get(grain) is not None}
    for grain, name in found.items():
        if not isinstance(name, str):
            raise ValueError(
                f"scope[{grain!r}] is {name!r}; expected text, since versions are kept by it"
            )
    return found


def check_grain(grain: str, name: str) -> None:
    """Raise ValueError unless a grain can have a version."""
    if grain not in GRAINS:
        raise ValueError(f"grain is {grain!r}; expected one of {', '.join(GRAINS)}")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{grain} is named {name!r}; expected text that is not empty")


class Versions:
    """The current version of every grain; 0 where it was never raised.

    Args:
        known: Of those that were raised.
    """

    def __init__(self, known: Mapping[tuple[str, str], int]) -> None:
        self._known = dict(known)

    def __getitem__(self, grain: tuple[str, str]) -> int:
        return self._known.get(grain, 0)

    def set(self, stamp: Stamp) -> None:
        """Make a version the current one."""
        self._known[stamp.grain, stamp.name] = stamp.version

    def stamps(self, key_space: str, grains: Mapping[str, str]) -> tuple[Stamp, ...]:
        """Return the current versions of a key space and of what a request names."""
        names = {KEY_SPACE: key_space, **grains}
        return tuple(Stamp(*grain, self[grain]) for grain in sorted(names.items()))

    def current(self, stamps: tuple[Stamp, ...]) -> bool:
        """Return whether none of the versions was raised since."""
        return all(self[stamp.grain, stamp.name] == stamp.version for stamp in stamps)

    def raised(self) -> list[Stamp]:
        """Return every version above 0."""
        return [Stamp(grain, name, version) for (grain, name), version in self._known.items()]


def versioned_digest(digest: str, stamps: tuple[Stamp, ...]) -> str:
    """Return the digest under which a request is stored and looked up.

    Args:
        digest: Of its scope, which the names of its grains are part of.
        stamps: Its versions; those that were never raised leave the digest as it is.
    """
    raised = [stamp for stamp in stamps if stamp.version]
    if not raised:
        return digest
    content = json.dumps([digest, raised], separators=(",", ":")).encode()
    return hashlib.sha256(content).hexdigest()[:DIGEST_CHARACTERS]
