"""Replays a routing trace through the shipped index, store and assignment policy: the counters a real run must show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from moesaic.core.interfaces import AssignmentPolicy, CostModel
from moesaic.core.ops import Op
from moesaic.core.places import DEVICE
from moesaic.core.routing import ExpertId
from moesaic.memory.index import ExpertIndex
from moesaic.memory.store import ExpertStore, State, StoreCounters
from moesaic.policies.assignment.fetch_misses import FetchMisses
from moesaic.sim.routing_trace import RoutingTrace


class _NoCost:
    """For traces of one token a step, whose assignment asks for no cost."""

    def seconds(self, op: Op, together: Sequence[Op] = ()) -> float:
        raise AssertionError(f"the assignment asks what {op.name} costs: give replay a cost model")


def replay(
    trace: RoutingTrace,
    index: ExpertIndex,
    assignment: AssignmentPolicy | None = None,
    cost: CostModel | None = None,
) -> StoreCounters:
    """Runs the trace over `index` (left as the trace leaves it) and returns the store's counters. `assignment` is
    FetchMisses unless given.

    Per layer step, as the runtime does it: all experts are demanded in ascending id and assigned; hits are pinned;
    blocking moves get slots as far as there are any, then fills do, or are dropped; with the layer's work issued all
    pins come off, and blocking moves left over follow in further waves. A fill is done when the next layer begins:
    exact for blocking moves, which a step waits for, and what the link gives at best for fills behind.
    """
    store = ExpertStore(index, trace.layers)
    assignment = assignment if assignment is not None else FetchMisses()
    cost = cost if cost is not None else _NoCost()
    num_layers = len(trace.layers)
    for number in range(len(trace) * num_layers):
        step, position = divmod(number, num_layers)
        layer = trace.layers[position]
        wanted = Counter(ExpertId(layer, e) for ids in trace.ids(step, layer) for e in ids)
        experts = sorted(wanted)
        hits = [expert for expert in experts if store.demand(expert, step) is State.RESIDENT]
        answer = assignment.assign({(DEVICE, e): wanted[e] for e in experts}, store.residency(experts), cost)
        for expert in hits:
            store.acquire(expert)
        left = [move.expert for move in answer.moves if move.blocking]
        granted = _fill(store, left, step, number)
        behind = [move.expert for move in answer.moves if not move.blocking]
        filled = [expert for expert in behind if _fill(store, [expert], step, number)]
        for expert in behind:
            if expert not in filled:
                store.drop(expert)
        _release(store, [*hits, *granted, *filled])
        while left := left[len(granted) :]:
            granted = _fill(store, left, step, number)
            assert granted, f"{left[0]} must be copied and its set has no way"
            _release(store, granted)
        store.settle(lambda _: True)
    return store.counters


def _fill(store: ExpertStore, experts: Sequence[ExpertId], step: int, op_index: int) -> list[ExpertId]:
    """Fills experts in order while slots are granted; returns those, still pinned."""
    granted: list[ExpertId] = []
    for expert in experts:
        if store.begin_fill(expert, step) is None:
            break
        granted.append(expert)
    for expert in granted:
        store.filled_by(expert, op_index)
    return granted


def _release(store: ExpertStore, experts: Sequence[ExpertId]) -> None:
    for expert in experts:
        store.release(expert)
