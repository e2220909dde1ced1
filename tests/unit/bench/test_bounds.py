"""The bound of a recorded routing: exact on small cases, and never above what a cache with those slots needs."""

import pytest

from moesaic.bench.bounds import StepBytes, decode_bound, first_wanted, one_memory_bound
from moesaic.core.routing import ExpertId
from moesaic.sim.bounds import MeasuredRates
from moesaic.sim.routing_trace import RoutingTrace, generate

RATES = MeasuredRates(
    device_bytes_s=1000.0, link_bytes_s=10.0, host_read_bytes_s=20.0, together_bytes_s=25.0, handoff_s=0.5
)


def test_all_hits_cost_device_reads_and_all_misses_cost_host_reads() -> None:
    trace = generate(num_layers=2, num_experts=4, top_k=2, num_steps=10, seed=0)
    full = decode_bound([trace], 8, StepBytes(100, 300), RATES)
    assert full.hit_rate == 1.0
    assert full.step_s == pytest.approx(300 / 1000 + 2 * 2 * 100 / 1000)
    none = decode_bound([trace], 0, StepBytes(100, 300), RATES)
    assert none.hit_rate == 0.0
    assert none.step_s == pytest.approx(300 / 1000 + 2 * (0.5 + 2 * 100 / 25))


def test_more_slots_never_lower_the_bound_and_traces_are_averaged_by_step() -> None:
    traces = [generate(3, 8, 2, num_steps, seed=num_steps) for num_steps in (5, 15)]
    rates = [1 / decode_bound(traces, slots, StepBytes(100, 10), RATES).step_s for slots in range(25)]
    assert rates == sorted(rates)
    parts = [decode_bound([t], 6, StepBytes(100, 10), RATES).step_s for t in traces]
    assert decode_bound(traces, 6, StepBytes(100, 10), RATES).step_s == pytest.approx(
        (5 * parts[0] + 15 * parts[1]) / 20
    )


def test_slots_start_with_what_is_wanted_first() -> None:
    trace = RoutingTrace((0, 1), num_experts=4, top_k=2)
    for ids in ([(3, 1)], [(0, 2)]):
        trace.begin_step()
        for layer in (0, 1):
            trace.record(layer, ids)
    assert first_wanted(trace, 3) == (ExpertId(0, 1), ExpertId(0, 3), ExpertId(1, 1))
    assert len(first_wanted(trace, 100)) == 8


def test_in_one_memory_every_byte_is_read_once_hit_or_miss() -> None:
    trace = generate(num_layers=2, num_experts=4, top_k=2, num_steps=10, seed=0)
    few, many = (one_memory_bound([trace], slots, StepBytes(100, 300), RATES) for slots in (1, 8))
    assert few.step_s == many.step_s == pytest.approx((300 + 2 * 2 * 100) / 25)
    assert few.hit_rate < many.hit_rate == 1.0
