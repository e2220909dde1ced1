"""Assignment policies by name: where each expert's tokens run, and which experts move."""

from __future__ import annotations

from typing import Protocol

from moesaic.core.interfaces import AssignmentPolicy
from moesaic.core.registry import Registry
from moesaic.policies.assignment.all_on_device import AllOnDevice
from moesaic.policies.assignment.cpu_misses import CpuMisses
from moesaic.policies.assignment.cpu_only import CpuOnly
from moesaic.policies.assignment.fetch_misses import FetchMisses


class AssignmentFactory(Protocol):
    def __call__(self, expert_bytes: float, flops_per_token: float) -> AssignmentPolicy: ...


def _all_on_device(expert_bytes: float, flops_per_token: float) -> AssignmentPolicy:
    return AllOnDevice()


def _fetch_misses(expert_bytes: float, flops_per_token: float) -> AssignmentPolicy:
    return FetchMisses()


def _cpu_only(expert_bytes: float, flops_per_token: float) -> AssignmentPolicy:
    return CpuOnly()


ASSIGNMENT: Registry[AssignmentFactory] = Registry(
    "assignment policy",
    {
        "all_on_device": _all_on_device,
        "fetch_misses": _fetch_misses,
        "cpu_misses": CpuMisses,
        "cpu_only": _cpu_only,
    },
)
