"""Hits on the device, misses on the host's processor, the cache filled behind (Fiddler; arXiv 2512.16473)."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.interfaces import CostModel
from moesaic.core.ops import Compute, Copy, Op
from moesaic.core.places import DEVICE, HOST, Lane
from moesaic.core.routing import Assignment, Demand, ExpertId, Move, Residency, Share
from moesaic.policies.assignment.base import by_expert

_HOST_COMPUTE, _DEVICE_LOAD, _DEVICE_COMPUTE = Lane(HOST, "compute"), Lane(DEVICE, "load"), Lane(DEVICE, "compute")


@dataclass(frozen=True, slots=True)
class CpuMisses:
    """A missing expert wanted by one token is computed on the host, as published, and one fill (a Move that nobody
    waits for, and that may be dropped) is asked for behind. With several tokens, the faster way by the cost model is
    taken for each expert alone: the host, or a blocking copy and the device; equal times go to the host.

    `expert_bytes` is what computing one expert reads and a copy moves; `flops_per_token` what a token costs in it.
    """

    expert_bytes: float
    flops_per_token: float

    def assign(self, demand: Demand, residency: Residency, cost: CostModel) -> Assignment:
        shares: list[Share] = []
        moves: list[Move] = []
        for expert, wanted in by_expert(demand).items():
            if DEVICE in residency[expert]:
                shares += wanted
                continue
            num_tokens = sum(share.num_tokens for share in wanted)
            on_host = num_tokens == 1 or self._host_is_faster(expert, num_tokens, cost)
            if on_host:
                shares += [share._replace(place=HOST, way="host") for share in wanted]
            else:
                shares += [share._replace(way="copied") for share in wanted]
            moves.append(Move(expert, HOST, DEVICE, blocking=not on_host))
        return Assignment(tuple(shares), tuple(moves))

    def _host_is_faster(self, expert: ExpertId, num_tokens: int, cost: CostModel) -> bool:
        name = f"L{expert.layer}.{{}}.e{expert.expert}"
        work = Compute(num_tokens * self.flops_per_token, self.expert_bytes)
        host_s = cost.seconds(Op(name.format("host"), _HOST_COMPUTE, work))
        copy_s = cost.seconds(Op(name.format("fetch"), _DEVICE_LOAD, Copy(HOST, DEVICE, self.expert_bytes)))
        device_s = cost.seconds(Op(name.format("experts"), _DEVICE_COMPUTE, work))
        return host_s <= copy_s + device_s
