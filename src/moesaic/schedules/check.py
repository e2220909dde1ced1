"""The laws every schedule obeys, checked on the ops themselves: nothing is computed before it is loaded, nothing is
overwritten under a reader, no place ever holds more experts than it has slots.

Works on whole runs: the fragments that `lower` wrote, end to end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from moesaic.core.ops import Op, Schedule

_EXPERT_OP = re.compile(r"L(\d+)\.(fetch|fill|expert)\.e(\d+)")


def check(schedule: Schedule, slots: Mapping[int, int], num_slots: int) -> list[str]:
    """Faults found, in order; empty for a lawful schedule.

    `slots` maps the index of each copy op to the slot it fills. A copy must follow (through lanes and `after`) every
    earlier read of its slot; a compute op that names an expert must follow the copy that put it there.
    """
    reach = _ancestors(schedule)
    faults: list[str] = []
    holder: dict[int, str] = {}  # slot -> expert
    filled: dict[str, int] = {}  # expert -> copy op
    readers: dict[int, list[int]] = {}  # slot -> ops that read it since it was filled
    for index, op in enumerate(schedule.ops, schedule.first):
        match = _EXPERT_OP.fullmatch(op.name)
        if match is None:
            continue
        layer, kind, number = match.groups()
        expert = f"L{layer}.e{number}"
        if kind == "expert":
            copy = filled.get(expert)
            if copy is None or holder.get(slots[copy]) != expert:
                faults.append(f"op {index} {op.name} uses {expert}, which is in no slot")
            elif copy not in reach[index]:
                faults.append(f"op {index} {op.name} does not wait for its copy, op {copy}")
            else:
                readers.setdefault(slots[copy], []).append(index)
            continue
        slot = slots[index]
        if not 0 <= slot < num_slots:
            faults.append(f"op {index} {op.name} fills slot {slot} of {num_slots}")
        faults += [
            f"op {index} {op.name} overwrites slot {slot} under op {reader}"
            for reader in readers.pop(slot, [])
            if reader not in reach[index]
        ]
        if slot in holder:
            filled.pop(holder[slot], None)
        holder[slot], filled[expert] = expert, index
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
