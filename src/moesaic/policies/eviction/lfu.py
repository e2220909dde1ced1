"""Least frequently used, counted since the start: counts are kept for experts that are not in the set too."""

from __future__ import annotations

from moesaic.core.routing import ExpertId


class LFU:
    """Gives up the way whose expert was wanted least often; of equals the one that was wanted longest ago."""

    __slots__ = ("_clock", "_count", "_expert_of", "_last_use")

    def __init__(self, num_ways: int) -> None:
        self._count: dict[ExpertId, int] = {}
        self._expert_of: list[ExpertId | None] = [None] * num_ways
        self._last_use = [0] * num_ways
        self._clock = 0

    def touch(self, way: int, expert: ExpertId, step: int) -> None:
        self._count[expert] = self._count.get(expert, 0) + 1
        self._clock += 1
        self._last_use[way] = self._clock

    def miss(self, expert: ExpertId, step: int) -> None:
        self._count[expert] = self._count.get(expert, 0) + 1

    def insert(self, way: int, expert: ExpertId, step: int) -> None:
        self._expert_of[way] = expert
        self._clock += 1
        self._last_use[way] = self._clock

    def victim(self, evictable: frozenset[int]) -> int | None:
        return min(evictable, key=self._value, default=None)

    def _value(self, way: int) -> tuple[int, int]:
        expert = self._expert_of[way]
        return (0 if expert is None else self._count.get(expert, 0)), self._last_use[way]
