"""Bounds that no policy and no kernel can beat: the clairvoyant cache, and the decode step made of measured rates."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moesaic.core.routing import ExpertId
from moesaic.sim.routing_trace import RoutingTrace

Requests = Sequence[tuple[ExpertId, ...]]  # in order; the distinct experts of one layer step, wanted together


class LayerHits(NamedTuple):
    """What one layer step found."""

    layer: int
    hits: float
    misses: float


@dataclass(frozen=True, slots=True)
class Hits:
    """`layer_steps` in the order of the requests; `fills`: experts that were put into a slot and stayed beyond their
    layer step."""

    layer_steps: tuple[LayerHits, ...]
    fills: int

    @property
    def hits(self) -> int:
        return int(sum(step.hits for step in self.layer_steps))

    @property
    def misses(self) -> int:
        return int(sum(step.misses for step in self.layer_steps))

    @property
    def hit_rate(self) -> float:
        """0 where nothing was wanted."""
        return self.hits / (self.hits + self.misses) if self.layer_steps and self.hits + self.misses else 0.0


def clairvoyant(requests: RoutingTrace | Requests, num_slots: int, warm: Iterable[ExpertId] = ()) -> Hits:
    """The most hits that any policy can have with `num_slots` slots for all layers together: Belady's MIN with bypass.

    `warm` is what the slots hold at first (no more than fit). The experts of a layer step are wanted together: each
    is a hit iff it is there when the step begins, and no fill of the step takes a sibling's place before it is used.
    After the step the slots keep, out of what they held and what was missing, the experts that are wanted soonest; a
    miss that is not among them is bypassed. That is the optimum: after a step any subset of the two that fits can be
    had, and of two contents that differ in one expert the one that is wanted sooner never has fewer hits.
    """
    groups: Requests = tuple(requests.requests()) if isinstance(requests, RoutingTrace) else requests
    held = dict.fromkeys(warm, 0)  # expert -> position of the request that wants it next
    assert len(held) <= num_slots, f"{len(held)} experts in {num_slots} slots"
    first, after = _next_uses(groups)
    for expert in tuple(held):
        if expert in first:
            held[expert] = first[expert]
        else:
            del held[expert]
    farthest = [(-position, expert) for expert, position in held.items()]
    heapq.heapify(farthest)
    layer_steps: list[LayerHits] = []
    fills = 0
    for group, uses in zip(groups, after, strict=True):
        found = {expert for expert in group if expert in held}
        if group:
            layer_steps.append(LayerHits(group[0].layer, len(found), len(group) - len(found)))
        for expert, position in zip(group, uses, strict=True):
            if position is None:
                held.pop(expert, None)  # never wanted again
            else:
                held[expert] = position
                heapq.heappush(farthest, (-position, expert))
        given_up: set[ExpertId] = set()
        while len(held) > num_slots:
            negative, expert = heapq.heappop(farthest)
            if held.get(expert) == -negative:
                del held[expert]
                given_up.add(expert)
        fills += sum(1 for expert in group if expert in held and expert not in found)
    return Hits(tuple(layer_steps), fills)


def _next_uses(groups: Requests) -> tuple[dict[ExpertId, int], list[list[int | None]]]:
    """Where each expert is wanted first, and for each expert of each group where it is wanted next."""
    coming: dict[ExpertId, int] = {}
    after: list[list[int | None]] = []
    for position in range(len(groups) - 1, -1, -1):
        after.append([coming.get(expert) for expert in groups[position]])
        coming |= dict.fromkeys(groups[position], position)
    after.reverse()
    return coming, after


def clairvoyant_by_set(
    requests: RoutingTrace | Requests, ways: Sequence[int], set_of: Callable[[ExpertId], int]
) -> Hits:
    """The same where each set has ways of its own, as ExpertIndex has them; every layer lies in one set."""
    groups = tuple(requests.requests()) if isinstance(requests, RoutingTrace) else requests
    places = [i for i, group in enumerate(groups) if group]
    by_set: list[list[int]] = [[] for _ in ways]
    for place in places:
        by_set[set_of(groups[place][0])].append(place)
    layer_steps: dict[int, LayerHits] = {}
    fills = 0
    for num_ways, members in zip(ways, by_set, strict=True):
        result = clairvoyant([groups[place] for place in members], num_ways)
        layer_steps |= zip(members, result.layer_steps, strict=True)
        fills += result.fills
    return Hits(tuple(layer_steps[place] for place in places), fills)


@dataclass(frozen=True, slots=True)
class MeasuredRates:
    """Bytes per second as measured on one machine. `together_bytes_s` is the most that the host's processor and the
    link read from the host's memory at once; `handoff_s` is device to host to device, once per layer with a miss."""

    device_bytes_s: float
    link_bytes_s: float
    host_read_bytes_s: float
    together_bytes_s: float
    handoff_s: float

    @property
    def miss_bytes_s(self) -> float:
        """The fastest that missing experts can be read by anyone."""
        return min(self.together_bytes_s, self.host_read_bytes_s + self.link_bytes_s)


def decode_bound_s(
    layer_steps: Iterable[LayerHits],
    expert_bytes: float,
    dense_bytes: float,
    rates: MeasuredRates,
    num_steps: int = 1,
) -> float:
    """Least seconds of `num_steps` decode steps whose layers found `layer_steps`: per step `dense_bytes` (everything
    but routed experts that a step reads on the device, the LM head included) over the device's rate, and per layer the
    hand-off if it has a miss, and the slower of its hits on the device and its misses out of host memory."""
    assert min(rates.device_bytes_s, rates.miss_bytes_s) > 0, rates
    hit_s, miss_s = expert_bytes / rates.device_bytes_s, expert_bytes / rates.miss_bytes_s
    layers_s = math.fsum(
        (rates.handoff_s if step.misses else 0.0) + max(step.hits * hit_s, step.misses * miss_s) for step in layer_steps
    )
    return num_steps * dense_bytes / rates.device_bytes_s + layers_s
