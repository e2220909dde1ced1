"""Everything fits: every expert is computed on the device, where the slots hold all of them."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.interfaces import CostModel
from moesaic.core.routing import Assignment, Demand, Residency
from moesaic.policies.assignment.base import on_device


@dataclass(frozen=True, slots=True)
class AllOnDevice:
    """Who chooses it has as many slots as experts and fills them all at start. An expert that is not there yet, as
    during that warm-up, is copied by a blocking Move; with a slot for each expert that happens once per expert."""

    def assign(self, demand: Demand, residency: Residency, cost: CostModel) -> Assignment:
        return on_device(demand, residency)
