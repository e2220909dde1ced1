"""The lane executor: order, spans, errors; on the CPU in line, on a GPU over streams (tests/gpu)."""

import itertools
import time

import pytest
import torch

from moesaic.core.ops import Compute, Copy, Op, Schedule
from moesaic.core.places import DEVICE, HOST, Lane
from moesaic.runtime.executor import LaneExecutor

COMPUTE, LOAD, HOST_COMPUTE = Lane(DEVICE, "compute"), Lane(DEVICE, "load"), Lane(HOST, "compute")


def fragment(first: int) -> Schedule:
    schedule = Schedule(first)
    copied = schedule.add(Op("copy", LOAD, Copy(HOST, DEVICE, 8), background=True))
    schedule.add(Op("work", COMPUTE, Compute(1, 1), after=(copied,)))
    return schedule


def test_ops_run_in_order_and_each_leaves_one_span():
    executor, ran = LaneExecutor(torch.device("cpu")), []
    for _ in range(3):
        first = executor.next_index
        executor.enqueue(fragment(first), {"copy": lambda: ran.append("copy"), "work": lambda: ran.append("work")})
    assert ran == ["copy", "work"] * 3
    spans = executor.drain()
    assert [s.index for s in spans] == list(range(6))
    assert [s.op.name for s in spans] == ran
    assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(spans))
    assert executor.collect() == ()


def test_a_span_lasts_as_long_as_its_body():
    executor = LaneExecutor(torch.device("cpu"))
    start_s = time.perf_counter()
    with executor.span(Op("sleep", HOST_COMPUTE, Compute())):
        time.sleep(0.01)
    length_s = time.perf_counter() - start_s
    (span,) = executor.collect()
    assert 0.01 <= span.end_s - span.start_s <= length_s


def test_what_a_binding_raises_comes_out_and_the_executor_goes_on():
    executor = LaneExecutor(torch.device("cpu"))

    def fail() -> None:
        raise RuntimeError("lane on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        executor.enqueue(fragment(0), {"copy": lambda: None, "work": fail})
    assert executor.next_index == 2
    executor.enqueue(fragment(2), {"copy": lambda: None, "work": lambda: None})
    assert len(executor.drain()) == 4


def test_a_fragment_built_for_another_point_of_the_run_is_refused():
    with pytest.raises(AssertionError):
        LaneExecutor(torch.device("cpu")).enqueue(fragment(5), {})
