"""Keys of multimodal requests and the cache that uses them: what serving needs, no training."""

from __future__ import annotations

from keynet.cache.acceptance import FixedThreshold
from keynet.cache.cache import CacheError, Hit, Miss, SemanticCache
from keynet.cache.request_scope import SHARED, request_scope
from keynet.export.loader import load_key_model
from keynet.types import Key, KeySpace, Request

__version__ = "0.1.0"
__all__ = [
    "SHARED", "CacheError", "FixedThreshold", "Hit", "Key", "KeySpace", "Miss", "Request",
    "SemanticCache", "__version__", "load_key_model", "request_scope",
]  # fmt: skip
