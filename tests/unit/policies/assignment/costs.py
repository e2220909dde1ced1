"""A cost model for assignment tests: bytes and flops at given rates, whichever takes longer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from moesaic.core.ops import Compute, Copy, Op
from moesaic.core.places import HOST


@dataclass
class Rates:
    host_bytes_s: float = 1.0
    host_flops_s: float = 1.0
    link_bytes_s: float = 1.0
    device_bytes_s: float = float("inf")
    asked: list[Op] = field(default_factory=list)

    def seconds(self, op: Op, together: Sequence[Op] = ()) -> float:
        self.asked.append(op)
        if isinstance(op.work, Copy):
            return op.work.num_bytes / self.link_bytes_s
        assert isinstance(op.work, Compute)
        if op.lane.place == HOST:
            return max(op.work.num_bytes / self.host_bytes_s, op.work.num_flops / self.host_flops_s)
        return op.work.num_bytes / self.device_bytes_s
