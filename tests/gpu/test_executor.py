"""The lane executor over CUDA streams: order across lanes, overlap, spans on one clock."""

import itertools

import pytest
import torch

from moesaic.core.ops import Compute, Copy, Op, Schedule
from moesaic.core.places import DEVICE, HOST, Lane
from moesaic.runtime.executor import LaneExecutor

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

COMPUTE, LOAD, HOST_COMPUTE = Lane(DEVICE, "compute"), Lane(DEVICE, "load"), Lane(HOST, "compute")
SLOW_CYCLES = 20_000_000  # about 10 ms


def test_a_compute_op_waits_for_the_delayed_copy_it_follows():
    executor = LaneExecutor(torch.device("cuda"))
    source = torch.full((1 << 20,), 7.0).pin_memory()
    target, result = torch.zeros(1 << 20, device="cuda"), torch.zeros(1 << 20, device="cuda")

    def late_copy():
        torch.cuda._sleep(SLOW_CYCLES)
        target.copy_(source, non_blocking=True)

    schedule = Schedule()
    copied = schedule.add(Op("copy", LOAD, Copy(HOST, DEVICE, source.nbytes)))
    schedule.add(Op("work", COMPUTE, Compute(), after=(copied,)))
    executor.enqueue(schedule, {"copy": late_copy, "work": lambda: result.copy_(target)})
    assert not executor.is_done(0)
    copy, work = executor.drain()
    assert result.eq(7.0).all()
    assert copy.end_s - copy.start_s > 2e-3
    assert work.start_s >= copy.end_s - 1e-4


def test_lanes_overlap_and_a_host_op_waits_for_its_stream_op():
    executor = LaneExecutor(torch.device("cuda"))
    schedule = Schedule()
    a = schedule.add(Op("a", COMPUTE, Compute()))
    schedule.add(Op("b", LOAD, Copy(HOST, DEVICE, 0), background=True))
    schedule.add(Op("c", HOST_COMPUTE, Compute(), after=(a,)))
    done = []
    executor.enqueue(
        schedule,
        {
            "a": lambda: torch.cuda._sleep(SLOW_CYCLES),
            "b": lambda: torch.cuda._sleep(SLOW_CYCLES),
            "c": lambda: done.append(executor.is_done(a)),
        },
    )
    spans = {s.op.name: s for s in executor.drain()}
    assert done == [True]
    overlap_s = min(spans["a"].end_s, spans["b"].end_s) - max(spans["a"].start_s, spans["b"].start_s)
    assert overlap_s > 0.5 * (spans["a"].end_s - spans["a"].start_s)
    assert spans["c"].start_s >= spans["a"].end_s - 1e-4


def test_collect_returns_what_has_ended_and_leaves_the_background_running():
    executor = LaneExecutor(torch.device("cuda"))
    schedule = Schedule()
    schedule.add(Op("slow", LOAD, Copy(HOST, DEVICE, 0), background=True))
    schedule.add(Op("quick", COMPUTE, Compute()))
    executor.enqueue(schedule, {"slow": lambda: torch.cuda._sleep(10 * SLOW_CYCLES), "quick": lambda: None})
    executor.wait(1)
    assert [s.op.name for s in executor.collect()] == ["quick"]
    assert [s.op.name for s in executor.drain()] == ["slow"]


def test_spans_of_one_lane_never_overlap_over_many_steps():
    executor, x = LaneExecutor(torch.device("cuda")), torch.ones(512, 512, device="cuda")
    spans = []
    for _ in range(200):
        schedule = Schedule(executor.next_index)
        first = schedule.add(Op("copy", LOAD, Copy(HOST, DEVICE, 0)))
        schedule.add(Op("work", COMPUTE, Compute(), after=(first,)))
        executor.enqueue(schedule, {"copy": lambda: x + 1, "work": lambda: x @ x})
        spans += executor.collect()
    spans += executor.drain()
    assert len(spans) == 400
    for lane in (COMPUTE, LOAD):
        own = sorted((s for s in spans if s.op.lane == lane), key=lambda s: s.index)
        assert all(a.end_s <= b.start_s + 2e-6 for a, b in itertools.pairwise(own))
