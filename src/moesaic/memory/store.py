"""ExpertStore: the one truth about which experts the device holds, and in what order their slots are written and read.

States of an expert on the device: MISS (not there), PENDING (its fill is begun), RESIDENT (there). The host holds all
experts. A pin protects a slot while ops are being issued; what has been issued is protected by order: the store keeps,
per slot, the ops that read it and the fill that is not known to be done, and a new fill must follow them.

    begin_fill -> enqueue the copy after Grant.after -> filled_by -> (compute: read_by) -> release -> settle
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from moesaic.core.places import DEVICE, HOST
from moesaic.core.routing import ExpertId, Residency
from moesaic.memory.index import ExpertIndex
from moesaic.memory.pool import PagePool


class State(Enum):
    MISS = "miss"
    PENDING = "pending"
    RESIDENT = "resident"


# Enum members are slow to look up on Python 3.11, and these are used on every call.
_MISS, _PENDING, _RESIDENT = State.MISS, State.PENDING, State.RESIDENT
_ON_HOST, _ON_BOTH = frozenset({HOST}), frozenset({HOST, DEVICE})


class Grant(NamedTuple):
    """A slot to fill. `after`: ops that must end before it is overwritten. `evicted`: who lost it."""

    slot: int
    after: tuple[int, ...]
    evicted: ExpertId | None


@dataclass(slots=True)
class StoreCounters:
    """Events by layer. A demand is a hit (RESIDENT) or a miss (MISS or PENDING); a fill counts once its op is
    issued, an eviction in the layer of the expert that left, a dropped fill was wanted and not made."""

    hits: dict[int, int] = field(default_factory=dict)
    misses: dict[int, int] = field(default_factory=dict)
    fills: dict[int, int] = field(default_factory=dict)
    evictions: dict[int, int] = field(default_factory=dict)
    dropped: dict[int, int] = field(default_factory=dict)

    @classmethod
    def zero(cls, layers: Iterable[int]) -> StoreCounters:
        numbers = tuple(layers)
        return cls(*(dict.fromkeys(numbers, 0) for _ in range(5)))

    def copy(self) -> StoreCounters:
        return StoreCounters(
            dict(self.hits), dict(self.misses), dict(self.fills), dict(self.evictions), dict(self.dropped)
        )


class ExpertStore:
    """The experts of a model over the slots of an index. `layers` are the model's MoE layers.

    Calls that break the order above (acquiring a MISS, releasing what is not pinned) are faults of the program: assert.
    """

    __slots__ = ("_evictable", "_fill_op", "_index", "_pending", "_pool", "_reads", "_used_by", "counters", "num_slots")

    def __init__(self, index: ExpertIndex, layers: Iterable[int]) -> None:
        self.num_slots = index.num_slots
        self.counters = StoreCounters.zero(layers)
        self._index = index
        self._pool = PagePool(index.num_slots)
        self._evictable: Callable[[int], bool] = self._pool.unpinned.__contains__
        self._pending: dict[ExpertId, int] = {}  # -> slot
        self._fill_op: list[int | None] = [None] * index.num_slots  # issued and not known to be done
        self._used_by: list[list[int]] = [[] for _ in range(index.num_slots)]  # ops the next fill must follow
        self._reads: deque[tuple[int, int]] = deque()  # (op, slot) in issue order, to forget finished readers

    # -- what is where ------------------------------------------------------------------------------------------
    def state(self, expert: ExpertId) -> State:
        if self._index.lookup(expert) is None:
            return _MISS
        return _PENDING if expert in self._pending else _RESIDENT

    def slot_of(self, expert: ExpertId) -> int | None:
        """The slot of a RESIDENT or PENDING expert."""
        return self._index.lookup(expert)

    def residency(self, experts: Iterable[ExpertId]) -> Residency:
        """HOST for every expert, DEVICE as well for RESIDENT ones."""
        lookup, pending = self._index.lookup, self._pending
        return {e: _ON_HOST if lookup(e) is None or e in pending else _ON_BOTH for e in experts}

    def resident(self) -> Mapping[ExpertId, int]:
        """A snapshot: the slot of every RESIDENT expert."""
        return {expert: slot for expert, slot in self._index.items() if expert not in self._pending}

    @property
    def num_pending(self) -> int:
        """Fills begun and not known to be done."""
        return len(self._pending)

    # -- use ----------------------------------------------------------------------------------------------------
    def demand(self, expert: ExpertId, step: int) -> State:
        """Tokens of `step` want `expert`: counts a hit or a miss, tells the eviction policy, returns the state."""
        index, layer = self._index, expert[0]
        index.touch(expert, step)
        if index.lookup(expert) is None:
            self.counters.misses[layer] += 1
            return _MISS
        if expert in self._pending:
            self.counters.misses[layer] += 1
            return _PENDING
        self.counters.hits[layer] += 1
        return _RESIDENT

    def acquire(self, expert: ExpertId) -> tuple[int, tuple[int, ...]]:
        """Pins a RESIDENT or PENDING expert. Returns its slot and the ops that a reader must follow: its fill, where
        that is not known to be done."""
        slot = self._index.lookup(expert)
        assert slot is not None, f"{expert} is not on the device"
        op = self._fill_op[slot]
        assert op is not None or expert not in self._pending, f"the fill of {expert} is not issued yet"
        self._pool.pin(slot)
        return slot, () if op is None else (op,)

    def read_by(self, expert: ExpertId, op_index: int) -> None:
        """Op `op_index` reads the slot of `expert`, which the caller has pinned."""
        slot = self._index.lookup(expert)
        assert slot is not None, f"{expert} is not on the device"
        assert self._pool.pinned(slot), f"{expert} is not pinned"
        self._used_by[slot].append(op_index)
        self._reads.append((op_index, slot))

    def release(self, expert: ExpertId) -> None:
        """Takes off the pin of one acquire or begin_fill."""
        slot = self._index.lookup(expert)
        assert slot is not None, f"{expert} is not on the device"
        self._pool.release(slot)

    # -- fills --------------------------------------------------------------------------------------------------
    def begin_fill(self, expert: ExpertId, step: int) -> Grant | None:
        """MISS -> PENDING, pinned for the caller. Takes a free slot of the expert's set, or one that its policy gives
        up among unpinned ways. None (nothing changed) where there is none."""
        inserted = self._index.insert(expert, step, self._evictable)
        if inserted is None:
            return None
        slot, evicted = inserted
        used_by, pool = self._used_by[slot], self._pool
        if evicted is None:
            pool.take(slot)
        else:
            self.counters.evictions[evicted[0]] += 1
            self._pending.pop(evicted, None)
            op = self._fill_op[slot]
            if op is not None:
                used_by.append(op)
                self._fill_op[slot] = None
        # one pin for the caller, one for the fill itself until it is issued: such a slot is nobody's to evict
        pool.pin(slot)
        pool.pin(slot)
        self._pending[expert] = slot
        return Grant(slot, tuple(used_by), evicted)

    def filled_by(self, expert: ExpertId, op_index: int) -> None:
        """The fill is issued as op `op_index`, ordered after Grant.after."""
        slot = self._pending[expert]
        assert self._fill_op[slot] is None, f"{expert} has a fill already"
        self._fill_op[slot] = op_index
        self._used_by[slot].clear()
        self._pool.release(slot)
        self.counters.fills[expert[0]] += 1

    def cancel_fill(self, expert: ExpertId) -> None:
        """Undoes begin_fill before filled_by: PENDING -> MISS, the slot is free, begin_fill's pin is off and the fill
        counts as dropped. Who was evicted stays so; ops that still use the slot are remembered."""
        slot = self._pending.pop(expert)
        assert self._fill_op[slot] is None, f"the fill of {expert} is issued"
        assert self._pool.num_pins(slot) == 2, f"{expert} was released before its fill was issued"
        self._pool.release(slot)
        self._pool.release(slot)
        self._pool.free(slot)
        self._index.remove(expert)
        self.counters.dropped[expert[0]] += 1

    def drop(self, expert: ExpertId) -> None:
        """Counts a fill that was wanted and not begun (no slot, or not admitted)."""
        self.counters.dropped[expert[0]] += 1

    def settle(self, is_done: Callable[[int], bool]) -> None:
        """PENDING -> RESIDENT where the fill is done; forgets finished readers. Cheap where nothing is open."""
        pending, reads, fill_op = self._pending, self._reads, self._fill_op
        if pending:
            for expert, slot in tuple(pending.items()):
                op = fill_op[slot]
                if op is not None and is_done(op):
                    fill_op[slot] = None
                    del pending[expert]
        done = -1
        while reads:
            op, slot = reads[0]
            if op != done and not is_done(op):
                return
            done = op
            reads.popleft()
            if op in (used_by := self._used_by[slot]):
                used_by.remove(op)

    def check_idle(self) -> None:
        """Asserts the invariants, and that nobody holds a pin and no fill was left un-issued: between steps (tests)."""
        self.check()
        assert not any(self._pool.pinned(slot) for slot in range(self.num_slots)), "a pin outlived its step"

    def check(self) -> None:
        """Asserts the invariants (tests)."""
        self._index.check()
        self._pool.check()
        held = dict(self._index.items())
        assert set(held.values()) == {s for s in range(self.num_slots) if self._pool.held(s)}
        assert self._pool.num_free + len(held) == self.num_slots
        assert all(held.get(expert) == slot for expert, slot in self._pending.items())
        waiting = set(self._pending.values())
        for slot, op in enumerate(self._fill_op):
            assert op is None or slot in waiting, f"slot {slot} has fill {op} and no PENDING expert"
            assert slot not in waiting or op is not None or self._pool.pinned(slot), f"slot {slot}: unissued, unpinned"
