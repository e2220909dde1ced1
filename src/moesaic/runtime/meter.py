"""What moved and where experts are: totals read off the timelines and the store."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from moesaic.core.model import ModelSpec
from moesaic.core.ops import Compute, Copy
from moesaic.core.places import HOST, Space
from moesaic.core.timeline import Timeline
from moesaic.memory.buffers import DevicePool
from moesaic.memory.store import ExpertStore
from moesaic.runtime.stats import PlaceStats


class Meter:
    """Implements stats.StatsSource. `add` takes each timeline once, as the executor gives it."""

    def __init__(
        self,
        spec: ModelSpec,
        store: ExpertStore,
        pool: DevicePool,
        limited: bool,
        arena_bytes: int,
        expert_errors: Mapping[int, float],
    ) -> None:
        self._spec, self._store, self._pool = spec, store, pool
        self._limited, self._arena_bytes, self._expert_errors = limited, arena_bytes, dict(expert_errors)
        self._bytes: dict[str, int] = {"h2d": 0, "d2h": 0, "host_read": 0}
        self._busy_s: dict[str, float] = {}

    def add(self, timeline: Timeline) -> None:
        for span in timeline:
            work, lane = span.op.work, str(span.op.lane)
            self._busy_s[lane] = self._busy_s.get(lane, 0.0) + span.end_s - span.start_s
            if isinstance(work, Copy):
                path = "h2d" if work.src.space is Space.HOST else "d2h"
                self._bytes[path] += int(work.num_bytes)
            elif isinstance(work, Compute) and span.op.lane.place == HOST:
                self._bytes["host_read"] += int(work.num_bytes)

    def place_stats(self) -> PlaceStats:
        counters, device = self._store.counters, self._pool.device
        on_device = self._store.resident()
        return PlaceStats(
            hits_by_layer=dict(counters.hits),
            misses_by_layer=dict(counters.misses),
            fills=sum(counters.fills.values()),
            evictions=sum(counters.evictions.values()),
            dropped=sum(counters.dropped.values()),
            bytes_by_path=dict(self._bytes),
            lane_busy_s=dict(self._busy_s),
            device_peak_bytes=self._peak_bytes(device),
            device_budget_bytes=self._pool.budget_bytes if self._limited else None,
            host_arena_bytes=self._arena_bytes,
            expert_error_by_layer=self._expert_errors,
            residency={e: "dev" if e in on_device else "host" for e in self._spec.experts()},
        )

    def _peak_bytes(self, device: torch.device) -> int:
        """On a GPU what torch's allocator held at most and the runtime beside it; on the CPU what the pool counts."""
        if device.type == "cuda":
            return torch.cuda.max_memory_reserved(device) + self._pool.held.get("runtime", 0)
        return self._pool.used_bytes
