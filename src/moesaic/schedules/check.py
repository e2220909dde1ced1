"""The laws every schedule obeys, checked on the ops themselves: nothing is computed before it is loaded, nothing is
overwritten under a reader or under another copy, no slot is outside the pool.

Works on whole runs: fragments as `lower` wrote them, end to end, with what each op does to the slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from moesaic.core.ops import Op, Schedule
from moesaic.core.routing import ExpertId


@dataclass(frozen=True, slots=True)
class SlotUse:
    """What the ops of a run do: the copy ops' (expert, slot) filled, and the compute ops' (expert, slot) read."""

    fills: Mapping[int, tuple[ExpertId, int]]
    reads: Mapping[int, Sequence[tuple[ExpertId, int]]] = field(default_factory=dict)


def check(schedule: Schedule, use: SlotUse, num_slots: int) -> list[str]:
    """Faults found, in order; empty for a lawful schedule.

    A copy must follow (through lanes and `after`) the slot's copy before it and every read since; a read must follow
    the copy that put the expert there.
    """
    reach = _ancestors(schedule)
    faults: list[str] = []
    holder: dict[int, tuple[ExpertId, int]] = {}  # slot -> who, by which copy
    readers: dict[int, list[int]] = {}  # slot -> ops that read it since it was filled
    for index, op in enumerate(schedule.ops, schedule.first):
        if index in use.fills:
            expert, slot = use.fills[index]
            if not 0 <= slot < num_slots:
                faults.append(f"op {index} {op.name} fills slot {slot} of {num_slots}")
            before = readers.pop(slot, []) + ([holder[slot][1]] if slot in holder else [])
            faults += [
                f"op {index} {op.name} overwrites slot {slot} under op {other}"
                for other in before
                if other not in reach[index]
            ]
            holder[slot] = (expert, index)
        for expert, slot in use.reads.get(index, ()):
            there, copy = holder.get(slot, (None, -1))
            if there != expert:
                faults.append(f"op {index} {op.name} reads {expert} in slot {slot}, which holds {there}")
            elif copy not in reach[index]:
                faults.append(f"op {index} {op.name} does not wait for its copy, op {copy}")
            readers.setdefault(slot, []).append(index)
    return faults


def _ancestors(schedule: Schedule) -> dict[int, set[int]]:
    """Ops that are sure to have ended before each op starts."""
    reach: dict[int, set[int]] = {}
    last: dict[object, int] = {}
    for index, op in enumerate(schedule.ops, schedule.first):
        before = [i for i in (*op.after, *_lane_predecessor(op, last)) if i >= schedule.first]
        reach[index] = set(before).union(*(reach[i] for i in before))
        last[op.lane] = index
    return reach


def _lane_predecessor(op: Op, last: Mapping[object, int]) -> Sequence[int]:
    return (last[op.lane],) if op.lane in last else ()
