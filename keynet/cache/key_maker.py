"""What makes the keys of a cache."""

from __future__ import annotations

from typing import Protocol

from keynet.cache.entry import CacheError
from keynet.types import Key, KeySpace, Request


class KeyMaker(Protocol):
    """What makes keys; ``load_key_model`` returns one."""

    @property
    def space(self) -> KeySpace:
        """Of all its keys."""
        ...

    def encode(self, requests: Request) -> Key:
        """Return the key of a request."""
        ...


class GivenKeys:
    """Stands in for a key model where every key was made elsewhere: a gateway, a replay.

    Args:
        space: Of the keys that ``lookup_key`` is given.
    """

    def __init__(self, space: KeySpace) -> None:
        self.space = space

    def encode(self, requests: Request) -> Key:
        """Refuse."""
        raise CacheError("cache makes no keys; give lookup_key the key, and insert the miss")
