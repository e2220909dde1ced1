"""The decode bound of the routing that just ran: the clairvoyant policy at the same slots, at the machine's rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moesaic.bench.assemble import BoundInputs
from moesaic.core.routing import ExpertId
from moesaic.sim.bounds import Hits, MeasuredRates, clairvoyant, decode_bound_s
from moesaic.sim.routing_trace import RoutingTrace


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes of one expert, and of everything else that a decode step reads on the device."""

    expert: int
    other: int


def decode_bound(
    traces: Sequence[RoutingTrace], num_slots: int, num_bytes: StepBytes, rates: MeasuredRates
) -> BoundInputs:
    """Seconds of the mean decode step over `traces`, each one generation's decode steps alone.

    The slots may start with the experts that are wanted first, whatever prefill left there: the bound of decoding
    must not be one that a lucky start beats.
    """
    seconds, found = 0.0, _clairvoyant(traces, num_slots)
    for trace, hits in zip(traces, found, strict=True):
        seconds += decode_bound_s(hits.layer_steps, num_bytes.expert, num_bytes.other, rates, len(trace))
    return _mean(seconds, traces, found, rates)


def one_memory_bound(
    traces: Sequence[RoutingTrace], num_slots: int, num_bytes: StepBytes, rates: MeasuredRates
) -> BoundInputs:
    """The same where device and host are one memory: every byte is read out of it once, hit or miss, at the most that
    its readers reach together."""
    found = _clairvoyant(traces, num_slots)
    experts = sum(hits.hits + hits.misses for hits in found)
    read_bytes = experts * num_bytes.expert + sum(map(len, traces)) * num_bytes.other
    return _mean(read_bytes / rates.together_bytes_s, traces, found, rates)


def first_wanted(trace: RoutingTrace, num_slots: int) -> tuple[ExpertId, ...]:
    """The first `num_slots` different experts that the trace asks for."""
    seen: dict[ExpertId, None] = {}
    for group in trace.requests():
        for expert in group:
            if len(seen) < num_slots:
                seen[expert] = None
    return tuple(seen)


def _clairvoyant(traces: Sequence[RoutingTrace], num_slots: int) -> tuple[Hits, ...]:
    return tuple(clairvoyant(trace, num_slots, first_wanted(trace, num_slots)) for trace in traces)


def _mean(seconds: float, traces: Sequence[RoutingTrace], found: Sequence[Hits], rates: MeasuredRates) -> BoundInputs:
    num_steps = sum(map(len, traces))
    assert num_steps, "no decode step was recorded"
    hits = sum(h.hits for h in found)
    wanted = hits + sum(h.misses for h in found)
    return BoundInputs(seconds / num_steps, hits / wanted, rates.link_bytes_s)
