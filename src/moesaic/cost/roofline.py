"""Seconds of an op on a measured machine: the roof that binds it, and what running beside others costs.

Compute takes the longer of its flops and its bytes (Williams' roofline); a copy takes bytes over the link plus the
link's latency. Reads of one host's memory by its processor and by its links share that memory (MoE-Lightning's
hierarchical model leaves this out): together they get at most the tier's shared bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence

from moesaic.core.ops import Compute, Copy, Exchange, Op
from moesaic.core.places import HardwareProfile, Place, Space


class RooflineCost:
    """core.interfaces.CostModel over a HardwareProfile. KeyError where the profile lacks a tier or a link."""

    def __init__(self, hardware: HardwareProfile) -> None:
        self.hardware = hardware

    def seconds(self, op: Op, together: Sequence[Op] = ()) -> float:
        alone_s = self._alone(op)
        for place in _reads(op):
            tier = self.hardware.tiers[place]
            rates = [r for o in (op, *together) if place in _reads(o) and (r := self._rate(o, place)) > 0]
            if tier.shared_bandwidth_bytes_s and sum(rates) > tier.shared_bandwidth_bytes_s:
                alone_s *= sum(rates) / tier.shared_bandwidth_bytes_s
        return alone_s

    def _alone(self, op: Op) -> float:
        work = op.work
        if isinstance(work, Compute):
            tier = self.hardware.tiers[op.lane.place]
            flops_s = work.num_flops / tier.peak_flops_s if tier.peak_flops_s else 0.0
            return max(flops_s, work.num_bytes / tier.bandwidth_bytes_s)
        if isinstance(work, Copy):
            link = self.hardware.links[work.src, work.dst]
            return link.latency_s + work.num_bytes / link.bandwidth_bytes_s
        pairs = [self.hardware.links[a, b] for a in work.peers for b in work.peers if a != b]
        slowest = min(pairs, key=lambda link: link.bandwidth_bytes_s)
        return slowest.latency_s + work.num_bytes / slowest.bandwidth_bytes_s

    def _rate(self, op: Op, place: Place) -> float:
        """Bytes a second that `op` alone draws from `place`'s memory."""
        assert not isinstance(op.work, Exchange)
        seconds = self._alone(op)
        return op.work.num_bytes / seconds if seconds else 0.0


def _reads(op: Op) -> tuple[Place, ...]:
    """The host whose memory this op draws on, if any."""
    place = op.lane.place if isinstance(op.work, Compute) else op.work.src if isinstance(op.work, Copy) else None
    return (place,) if place is not None and place.space is Space.HOST else ()
