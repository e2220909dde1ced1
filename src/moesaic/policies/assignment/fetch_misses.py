"""On-demand transfer: a missing expert is copied to the device, and its tokens wait for it (DeepSpeed-Inference)."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.interfaces import CostModel
from moesaic.core.routing import Assignment, Demand, Residency
from moesaic.policies.assignment.base import on_device


@dataclass(frozen=True, slots=True)
class FetchMisses:
    """An expert whose fill is under way is not RESIDENT: its Move finds that fill and waits for it."""

    def assign(self, demand: Demand, residency: Residency, cost: CostModel) -> Assignment:
        return on_device(demand, residency)
