"""ExpertIndex: which expert lies in which slot. Sets of ways, tagged (layer, expert), each with its eviction policy.

The published cache is N sets x M ways with set = layer mod N (arXiv 2512.16473); by default each MoE layer has a set
of its own, since a set that several layers share loses an expert to the other layers before its next use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from moesaic.core.interfaces import EvictionPolicy
from moesaic.core.routing import ExpertId


class Geometry(NamedTuple):
    """Ways of each set, and the set of an expert: `ExpertIndex(*spread(num_slots, layers), eviction)`."""

    ways: tuple[int, ...]
    set_of: Callable[[ExpertId], int]


def spread(num_slots: int, layers: Sequence[int]) -> Geometry:
    """One set per layer, the ways as even as the slots allow, earlier layers first. With fewer slots than layers:
    `num_slots` sets of one way, shared by layers at equal distance. With no slot: one set without ways."""
    num_sets = max(1, min(num_slots, len(layers)))
    share, rest = divmod(num_slots, num_sets)
    return _by_layer(
        tuple(share + (i < rest) for i in range(num_sets)), {n: i % num_sets for i, n in enumerate(layers)}
    )


def n_by_m(num_sets: int, num_ways: int, layers: Sequence[int]) -> Geometry:
    """The published form: `num_sets` sets of `num_ways` ways, set = layer mod `num_sets`."""
    return _by_layer((num_ways,) * num_sets, {n: n % num_sets for n in layers})


def _by_layer(ways: tuple[int, ...], table: dict[int, int]) -> Geometry:
    return Geometry(ways, lambda expert: table[expert[0]])


class _Set:
    """`ways` pairs each way with its slot; `free` is a stack of empty ways."""

    __slots__ = ("first", "free", "policy", "ways")

    def __init__(self, first: int, num_ways: int, policy: EvictionPolicy) -> None:
        self.first = first
        self.ways = [(way, first + way) for way in range(num_ways)]
        self.free = list(range(num_ways - 1, -1, -1))
        self.policy = policy


class ExpertIndex:
    """Sets with `ways[i]` ways each; the ways of all sets, one after the other, are slots 0, 1, 2, ...

    `set_of` gives an expert's set, `eviction` builds the policy of a set from its number of ways. The tag is the
    whole ExpertId: two layers that share a set never see each other's experts.
    """

    __slots__ = ("_expert_of", "_set_of", "_sets", "_slot_of", "num_slots")

    def __init__(
        self, ways: Sequence[int], set_of: Callable[[ExpertId], int], eviction: Callable[[int], EvictionPolicy]
    ) -> None:
        firsts = accumulate(ways, initial=0)
        self._sets = [_Set(first, num_ways, eviction(num_ways)) for first, num_ways in zip(firsts, ways, strict=False)]
        self._set_of = set_of
        self._slot_of: dict[ExpertId, int] = {}
        self.num_slots = sum(ways)
        self._expert_of: list[ExpertId | None] = [None] * self.num_slots

    def lookup(self, expert: ExpertId) -> int | None:
        """The expert's slot, or None. Tells the policy nothing."""
        return self._slot_of.get(expert)

    def touch(self, expert: ExpertId, step: int) -> None:
        """Tells the policy that `expert` was wanted: a use of its way, or a miss."""
        target = self._sets[self._set_of(expert)]
        slot = self._slot_of.get(expert)
        if slot is None:
            target.policy.miss(expert, step)
        else:
            target.policy.touch(slot - target.first, expert, step)

    def insert(
        self, expert: ExpertId, step: int, evictable: Callable[[int], bool]
    ) -> tuple[int, ExpertId | None] | None:
        """Gives an absent expert a slot: a free way of its set, else the policy's victim among ways whose slot is
        `evictable`. Returns the slot and the expert that lost it, or None (nothing changed) where no way can be had."""
        slot_of = self._slot_of
        assert expert not in slot_of, f"{expert} has a slot"
        target = self._sets[self._set_of(expert)]
        evicted: ExpertId | None = None
        if target.free:
            way = target.free.pop()
            slot = target.first + way
        else:
            candidates = frozenset([way for way, slot in target.ways if evictable(slot)])
            victim = target.policy.victim(candidates) if candidates else None
            if victim is None:
                return None
            assert victim in candidates, f"way {victim} was not evictable"
            way, slot = victim, target.first + victim
            evicted = self._expert_of[slot]
            assert evicted is not None
            del slot_of[evicted]
        slot_of[expert] = slot
        self._expert_of[slot] = expert
        target.policy.insert(way, expert, step)
        return slot, evicted

    def remove(self, expert: ExpertId) -> int:
        """Empties the expert's way and returns its slot."""
        slot = self._slot_of.pop(expert)
        target = self._sets[self._set_of(expert)]
        target.free.append(slot - target.first)
        self._expert_of[slot] = None
        return slot

    def items(self) -> tuple[tuple[ExpertId, int], ...]:
        """Every (expert, slot)."""
        return tuple(self._slot_of.items())

    @property
    def num_held(self) -> int:
        return len(self._slot_of)

    def set_of(self, expert: ExpertId) -> int:
        return self._set_of(expert)

    @property
    def ways(self) -> tuple[int, ...]:
        return tuple(len(s.ways) for s in self._sets)

    def check(self) -> None:
        """Asserts the invariants (tests): the two maps agree, every expert is in its set, free ways are empty."""
        assert {e: s for s, e in enumerate(self._expert_of) if e is not None} == self._slot_of
        for expert, slot in self._slot_of.items():
            target = self._sets[self._set_of(expert)]
            assert target.first <= slot < target.first + len(target.ways), f"{expert} is outside its set"
        for target in self._sets:
            empty = sorted(way for way, slot in target.ways if self._expert_of[slot] is None)
            assert sorted(target.free) == empty, f"free ways {target.free}, empty ways {empty}"
