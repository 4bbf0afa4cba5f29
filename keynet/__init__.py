"""Keys of multimodal requests: what serving needs, and nothing that trains."""

from __future__ import annotations

from keynet.export.loader import load_key_model
from keynet.types import Key, KeySpace, Request

__version__ = "0.1.0"
__all__ = ["Key", "KeySpace", "Request", "__version__", "load_key_model"]
