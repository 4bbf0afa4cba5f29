"""The replacement policies by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from keynet.cache.policies.arc import ARC
from keynet.cache.policies.gdsf import GDSF
from keynet.cache.policies.heat_graph import HeatGraph
from keynet.cache.policies.klfu import KLFU
from keynet.cache.policies.lfu import LFU
from keynet.cache.policies.lirs import LIRS
from keynet.cache.policies.lru import LRU
from keynet.cache.policies.lru_k import LRUK
from keynet.cache.policies.policy import Policy
from keynet.cache.policies.s3_fifo import S3FIFO
from keynet.cache.policies.sieve import SIEVE
from keynet.cache.policies.ssrp import SSRP
from keynet.cache.policies.w_tinylfu import WTinyLFU


class MakesPolicy(Protocol):
    """Makes the policy of a capacity, in entries or bytes, and a seed."""

    def __call__(self, capacity: int, seed: int = 0) -> Policy: ...


POLICIES: Mapping[str, MakesPolicy] = {
    "lru": LRU,
    "lfu": LFU,
    "klfu": KLFU,
    "lru_k": LRUK,
    "arc": ARC,
    "lirs": LIRS,
    "s3_fifo": S3FIFO,
    "sieve": SIEVE,
    "w_tinylfu": WTinyLFU,
    "gdsf": GDSF,
    "ssrp": SSRP,  # needs vectors
    "heat_graph": HeatGraph,  # needs vectors
}
