"""Values -> ops: one MoE layer's assignment, with the slots it was granted, as a fragment for the executor.

Pure: the runner asks the store for slots, this writes what must happen in which order, the executor does it.
Names within layer <l>: `L<l>.x` activations to the host, `.hits` resident experts together, `.fetch.e<i>` a blocking
copy and `.expert.e<i>` the compute that waits for it, `.host` experts computed on the host, `.y` their result back,
`.fill.e<i>` a copy nobody waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moesaic.core.ops import Compute, Copy, Op, Schedule
from moesaic.core.places import DEVICE, HOST, Lane
from moesaic.core.routing import ExpertId

DEVICE_COMPUTE = Lane(DEVICE, "compute")
DEVICE_LOAD = Lane(DEVICE, "load")
DEVICE_STORE = Lane(DEVICE, "store")
HOST_COMPUTE = Lane(HOST, "compute")


@dataclass(frozen=True, slots=True)
class ExpertCost:
    """What any expert of a layer costs: bytes of its pages, flops per token, bytes of one token's activations."""

    expert_bytes: int
    flops_per_token: int
    token_bytes: int

    def compute(self, num_experts: int, num_tokens: int) -> Compute:
        return Compute(float(self.flops_per_token * num_tokens), float(self.expert_bytes * num_experts))


@dataclass(frozen=True, slots=True)
class Wave:
    """What one fragment runs of a layer.

    `num_tokens` routed rows per expert. `resident` maps an expert on the device to the ops its readers must follow;
    `fetched` and `fills` map an expert to the ops that must end before its slot is overwritten; `host` are
    computed on the host. Order of the mappings is issue order.
    """

    layer: int
    num_tokens: Mapping[ExpertId, int]
    resident: Mapping[ExpertId, tuple[int, ...]] = field(default_factory=dict)
    fetched: Mapping[ExpertId, tuple[int, ...]] = field(default_factory=dict)
    host: tuple[ExpertId, ...] = ()
    fills: Mapping[ExpertId, tuple[int, ...]] = field(default_factory=dict)


def lower(wave: Wave, cost: ExpertCost, num_rows: int, first: int, inputs: int) -> Schedule:
    """Ops of `wave`, starting at index `first`. `inputs` is the op that produced the layer's activations and
    routing; `num_rows` tokens go to the host and back where the host computes.

    Issue order makes lanes overlap: what the slowest lanes carry comes first (activations to the host, blocking
    copies), then what the device can compute, and the host's work last: issuing it in line blocks whoever issues.
    """
    schedule = Schedule(first)
    name = f"L{wave.layer}."
    row_bytes = float(num_rows * cost.token_bytes)
    if wave.host:
        down = schedule.add(Op(name + "x", DEVICE_STORE, Copy(DEVICE, HOST, row_bytes), (inputs,)))
    copies = {}
    for expert, after in wave.fetched.items():
        copies[expert] = schedule.add(_copy(f"{name}fetch.e{expert.expert}", cost, after))
    if wave.resident:
        after = tuple(sorted({inputs, *(i for ops in wave.resident.values() for i in ops)}))
        work = cost.compute(len(wave.resident), sum(wave.num_tokens[e] for e in wave.resident))
        schedule.add(Op(name + "hits", DEVICE_COMPUTE, work, after))
    for expert, copied in copies.items():
        work = cost.compute(1, wave.num_tokens[expert])
        schedule.add(Op(f"{name}expert.e{expert.expert}", DEVICE_COMPUTE, work, (inputs, copied)))
    for expert, after in wave.fills.items():
        schedule.add(_copy(f"{name}fill.e{expert.expert}", cost, after, background=True))
    if wave.host:
        work = cost.compute(len(wave.host), sum(wave.num_tokens[e] for e in wave.host))
        done = schedule.add(Op(name + "host", HOST_COMPUTE, work, (down,)))
        # on the compute lane, not behind the fills of the load lane
        schedule.add(Op(name + "y", DEVICE_COMPUTE, Copy(HOST, DEVICE, row_bytes), (done,)))
    return schedule


def _copy(name: str, cost: ExpertCost, after: tuple[int, ...], background: bool = False) -> Op:
    return Op(name, DEVICE_LOAD, Copy(HOST, DEVICE, float(cost.expert_bytes)), tuple(sorted(set(after))), background)
