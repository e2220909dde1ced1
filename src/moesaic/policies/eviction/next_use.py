"""The clairvoyant: gives up the way whose expert is wanted again last (Belady's MIN). Needs the future.

It serves where the order is known (streamed layers, simulations). It fills whenever it is asked to; the bound that
may also refuse a fill is sim/bounds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from moesaic.core.routing import ExpertId


class NextUse:
    """`uses`: the steps at which each expert will be wanted, ascending; "now" is the last step it was told of."""

    __slots__ = ("_expert_of", "_now", "_uses")

    def __init__(self, num_ways: int, uses: Mapping[ExpertId, Sequence[int]]) -> None:
        self._uses = uses
        self._expert_of: list[ExpertId | None] = [None] * num_ways
        self._now = -1

    def touch(self, way: int, expert: ExpertId, step: int) -> None:
        self._now = step

    def miss(self, expert: ExpertId, step: int) -> None:
        self._now = step

    def insert(self, way: int, expert: ExpertId, step: int) -> None:
        self._expert_of[way] = expert
        self._now = step

    def victim(self, evictable: frozenset[int]) -> int | None:
        return max(evictable, key=lambda way: (self._next_use(way), -way), default=None)

    def _next_use(self, way: int) -> float:
        expert = self._expert_of[way]
        steps = self._uses.get(expert, ()) if expert is not None else ()
        position = bisect_right(steps, self._now)
        return steps[position] if position < len(steps) else math.inf
