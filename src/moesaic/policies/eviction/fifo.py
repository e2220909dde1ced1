"""First in, first out: gives up the way that was filled longest ago, used or not."""

from __future__ import annotations

from collections import OrderedDict

from moesaic.core.routing import ExpertId


class FIFO:
    __slots__ = ("_order",)

    def __init__(self, num_ways: int) -> None:
        self._order: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_ways))

    def touch(self, way: int, expert: ExpertId, step: int) -> None:
        pass

    def miss(self, expert: ExpertId, step: int) -> None:
        pass

    def insert(self, way: int, expert: ExpertId, step: int) -> None:
        self._order.move_to_end(way)

    def victim(self, evictable: frozenset[int]) -> int | None:
        return next((way for way in self._order if way in evictable), None)
