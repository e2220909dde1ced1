"""Eviction policies by name: each orders the ways of one set."""

from __future__ import annotations

from collections.abc import Callable

from moesaic.core.interfaces import EvictionPolicy
from moesaic.core.registry import Registry
from moesaic.policies.eviction.fifo import FIFO
from moesaic.policies.eviction.lfu import LFU
from moesaic.policies.eviction.lru import LRU

# name -> factory(num_ways). NextUse is not among them: it needs the future.
EVICTION: Registry[Callable[[int], EvictionPolicy]] = Registry(
    "eviction policy", {"lru": LRU, "fifo": FIFO, "lfu": LFU}
)
