"""From keys to codes, and from a code to its nearest."""

from keynet.hashing.ops import backend, cosine_rerank, hamming_search, hash_keys, words

__all__ = ["backend", "cosine_rerank", "hamming_search", "hash_keys", "words"]
