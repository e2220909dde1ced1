import pytest

from moesaic.core.places import HOST
from moesaic.memory.index import ExpertIndex, n_by_m, spread
from moesaic.policies.assignment import ASSIGNMENT
from moesaic.policies.assignment.cpu_misses import CpuMisses
from moesaic.policies.eviction import EVICTION
from moesaic.sim.replay import replay
from moesaic.sim.routing_trace import RoutingTrace, generate


def trace_of(*steps: tuple[int, ...]) -> RoutingTrace:
    trace = RoutingTrace((0,), 4, len(steps[0]))
    for ids in steps:
        trace.begin_step()
        trace.record(0, [ids])
    return trace


def test_a_hit_is_never_evicted_by_a_sibling() -> None:
    # step 1 hits 0, which is the older of the two: 2 must take the way of 1
    counters = replay(trace_of((0, 1), (0, 2), (0, 1)), ExpertIndex(*spread(2, (0,)), EVICTION["fifo"]))
    assert counters.hits == {0: 2}
    assert (counters.misses, counters.fills, counters.evictions) == ({0: 4}, {0: 4}, {0: 2})


def test_copies_that_find_no_slot_follow_in_waves() -> None:
    counters = replay(trace_of((0, 1), (0, 1)), ExpertIndex(*spread(1, (0,)), EVICTION["lru"]))
    # 0 then 1 through one slot; in step 1, 1 is the hit and 0 follows it
    assert (counters.hits, counters.misses, counters.fills, counters.dropped) == ({0: 1}, {0: 3}, {0: 3}, {0: 0})


def test_fills_behind_that_find_no_slot_are_dropped() -> None:
    counters = replay(trace_of((0, 1), (0, 1)), ExpertIndex(*spread(1, (0,)), EVICTION["lru"]), CpuMisses(1.0, 1.0))
    assert (counters.hits, counters.misses, counters.fills, counters.dropped) == ({0: 1}, {0: 3}, {0: 1}, {0: 2})


@pytest.mark.parametrize("eviction", EVICTION)
@pytest.mark.parametrize("assignment", ["fetch_misses", "cpu_misses"])
def test_with_a_slot_per_expert_only_first_uses_miss(eviction: str, assignment: str) -> None:
    trace = generate(3, 8, 2, 40, seed=3)
    index = ExpertIndex(*spread(24, trace.layers), EVICTION[eviction])
    counters = replay(trace, index, ASSIGNMENT[assignment](1.0, 1.0))
    assert sum(counters.misses.values()) == len({e for group in trace.requests() for e in group})
    assert sum(counters.hits.values()) + sum(counters.misses.values()) == 3 * 2 * 40
    assert index.num_held == sum(counters.fills.values())


def test_shared_sets_hit_less_than_sets_of_their_own() -> None:
    trace = generate(8, 8, 2, 200, seed=0)
    own, shared = (
        sum(replay(trace, ExpertIndex(*geometry, EVICTION["lru"])).hits.values())
        for geometry in (spread(28, trace.layers), n_by_m(4, 7, trace.layers))
    )
    assert own > shared


def test_several_tokens_ask_the_cost_model() -> None:
    trace = RoutingTrace((0,), 4, 1)
    trace.begin_step()
    trace.record(0, [(2,), (2,)])
    index = ExpertIndex(*spread(1, (0,)), EVICTION["lru"])
    with pytest.raises(AssertionError, match="cost model"):
        replay(trace, index, CpuMisses(1.0, 1.0))

    class HostIsSlow:
        def seconds(self, op: object, together: object = ()) -> float:
            return 9.0 if op.lane.place == HOST else 1.0  # type: ignore[attr-defined]

    counters = replay(trace, ExpertIndex(*spread(1, (0,)), EVICTION["lru"]), CpuMisses(1.0, 1.0), HostIsSlow())
    assert counters.fills == {0: 1}
