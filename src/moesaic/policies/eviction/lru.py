"""Least recently used: gives up the way whose expert was wanted longest ago."""

from __future__ import annotations

from collections import OrderedDict

from moesaic.core.routing import ExpertId


class LRU:
    """Order of use, not of steps: of two experts of one step the later touched is the younger."""

    __slots__ = ("_order",)

    def __init__(self, num_ways: int) -> None:
        self._order: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_ways))

    def touch(self, way: int, expert: ExpertId, step: int) -> None:
        self._order.move_to_end(way)

    def miss(self, expert: ExpertId, step: int) -> None:
        pass

    def insert(self, way: int, expert: ExpertId, step: int) -> None:
        self._order.move_to_end(way)

    def victim(self, evictable: frozenset[int]) -> int | None:
        return next((way for way in self._order if way in evictable), None)
