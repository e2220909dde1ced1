"""Forced routing: what runs, what the host sees and what is recorded are the trace's experts."""

from __future__ import annotations

import pytest

from moesaic.sim.routing_trace import RoutingTrace, generate
from tests.engines import TINY, greedy, open_llm


@pytest.mark.parametrize("assignment", ["fetch_misses", "cpu_misses"])
def test_every_step_takes_the_trace_s_experts(assignment):
    trace = generate(num_layers=6, num_experts=8, top_k=2, num_steps=40, seed=3)
    recorded = RoutingTrace(range(6), 8, 2)
    with open_llm(TINY, 12, assignment=assignment) as llm:
        tap = llm.engine.parts.run.runner.tap
        tap.force(trace)
        tap.record_to(recorded)
        llm.generate([[5]], greedy(40), use_tqdm=False)
        counts = llm.stats()
    for layer in range(6):
        assert [recorded.ids(s, layer) for s in range(40)] == [trace.ids(s, layer) for s in range(40)]
    assert counts.hits + counts.misses == 40 * 6 * 2
