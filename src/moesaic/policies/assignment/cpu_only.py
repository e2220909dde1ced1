"""Every expert is computed on the host: what remains of `cpu_misses` where the device has no slot."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.interfaces import CostModel
from moesaic.core.places import HOST
from moesaic.core.routing import Assignment, Demand, Residency
from moesaic.policies.assignment.base import by_expert


@dataclass(frozen=True, slots=True)
class CpuOnly:
    """Nothing moves; residency on the device is not looked at, for there is none."""

    def assign(self, demand: Demand, residency: Residency, cost: CostModel) -> Assignment:
        wanted = [share for shares in by_expert(demand).values() for share in shares]
        return Assignment(tuple(share._replace(place=HOST, way="host") for share in wanted))
