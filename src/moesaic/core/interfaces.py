"""The Protocols: what deciders are asked and what doers offer. Deciders are pure: values in, values out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from moesaic.core.ops import Op, Schedule
from moesaic.core.plan import Plan
from moesaic.core.routing import Assignment, Demand, ExpertId, Move, Residency
from moesaic.core.timeline import Timeline


class CostModel(Protocol):
    def seconds(self, op: Op, together: Sequence[Op] = ()) -> float:
        """Seconds of `op` while `together` run beside it: reads of the host memory share its bandwidth."""
        ...


class AssignmentPolicy(Protocol):
    """Chooses, for one MoE layer, where each expert's tokens run and which pages move."""

    def assign(self, demand: Demand, residency: Residency, cost: CostModel) -> Assignment: ...


class EvictionPolicy(Protocol):
    """Orders the ways of one set; sees ids and steps, never tensors."""

    def touch(self, way: int, expert: ExpertId, step: int) -> None:
        """`expert`, which `way` holds, was used at `step`."""
        ...

    def miss(self, expert: ExpertId, step: int) -> None:
        """`expert` was wanted at `step` and is in no way of this set: policies count absent experts too."""
        ...

    def insert(self, way: int, expert: ExpertId, step: int) -> None:
        """`way` now holds `expert`; whatever it held before is gone."""
        ...

    def victim(self, evictable: frozenset[int]) -> int | None:
        """A way out of `evictable` to give up, or None to give up none. Changes nothing."""
        ...


class AdmissionPolicy(Protocol):
    """May this background move start now? Fills compete for the link with the step itself."""

    def admit(self, move: Move, in_flight_bytes: int) -> bool: ...


class PrefetchPolicy(Protocol):
    def predict(self, layer: int, recent: Demand) -> tuple[ExpertId, ...]: ...


class ScheduleBuilder(Protocol):
    def build(self, plan: Plan, demand: Demand, residency: Residency, cost: CostModel) -> Schedule: ...


class Executor(Protocol):
    """Runs ops: on streams and threads, or on a simulated clock."""

    @property
    def next_index(self) -> int:
        """The index that the next enqueued op gets: a fragment's `first`."""
        ...

    def enqueue(self, fragment: Schedule, bindings: Mapping[str, Callable[[], None]]) -> None:
        """Starts the fragment's ops in order, each after its `after`. May return before they have run."""
        ...

    def is_done(self, index: int) -> bool:
        """True once op `index` has ended; never waits."""
        ...

    def collect(self) -> Timeline:
        """The spans of ops that have ended and were not returned before; never waits."""
        ...

    def drain(self) -> Timeline:
        """Waits for every op, background ones too, then collects."""
        ...
