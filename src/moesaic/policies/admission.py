"""Admission policies: may this background fill start now?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moesaic.core.interfaces import AdmissionPolicy
from moesaic.core.registry import Registry
from moesaic.core.routing import Move


@dataclass(frozen=True, slots=True)
class Always:
    """Every fill starts."""

    def admit(self, move: Move, in_flight_bytes: int) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Limit:
    """A fill starts while less than `max_in_flight_bytes` of fills are under way, so at most one fill exceeds it."""

    max_in_flight_bytes: int

    def admit(self, move: Move, in_flight_bytes: int) -> bool:
        return in_flight_bytes < self.max_in_flight_bytes


def _always(max_in_flight_bytes: int) -> AdmissionPolicy:
    return Always()


# name -> factory(max_in_flight_bytes)
ADMISSION: Registry[Callable[[int], AdmissionPolicy]] = Registry(
    "admission policy", {"always": _always, "limit": Limit}
)
