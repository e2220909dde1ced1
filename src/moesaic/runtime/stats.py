"""What an engine has done so far: tokens and seconds from its step loop, experts and bytes from those who hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from moesaic.core.routing import ExpertId


@dataclass(frozen=True, slots=True)
class PlaceStats:
    """Totals since the start of those who hold and move the experts; by MoE layer where so named."""

    hits_by_layer: Mapping[int, int] = field(default_factory=dict)
    misses_by_layer: Mapping[int, int] = field(default_factory=dict)
    fills: int = 0
    evictions: int = 0
    dropped: int = 0
    bytes_by_path: Mapping[str, int] = field(default_factory=dict)  # "h2d", "d2h", "host_read"
    lane_busy_s: Mapping[str, float] = field(default_factory=dict)
    device_peak_bytes: int = 0
    device_budget_bytes: int | None = None
    host_arena_bytes: int = 0
    expert_error_by_layer: Mapping[int, float] = field(default_factory=dict)  # relative RMS, where quantized at loading
    residency: Mapping[ExpertId, str] = field(default_factory=dict)  # "dev" or "host"


class StatsSource(Protocol):
    def place_stats(self) -> PlaceStats: ...


@dataclass(slots=True)
class StepCounts:
    """What the step loop counts as it goes. A step's seconds are shared out by its tokens."""

    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    num_steps: int = 0
    num_preemptions: int = 0

    def add_step(self, prefill_tokens: int, decode_tokens: int, seconds: float) -> None:
        share = prefill_tokens / (prefill_tokens + decode_tokens)
        self.prefill_tokens += prefill_tokens
        self.decode_tokens += decode_tokens
        self.prefill_s += seconds * share
        self.decode_s += seconds * (1 - share)
        self.num_steps += 1


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals since the engine was built."""

    prefill_tokens: int
    decode_tokens: int
    prefill_s: float
    decode_s: float
    num_steps: int
    num_preemptions: int
    hits: int
    misses: int
    fills: int
    evictions: int
    dropped: int
    hits_by_layer: Mapping[int, int]
    misses_by_layer: Mapping[int, int]
    bytes_by_path: Mapping[str, int]
    lane_busy_s: Mapping[str, float]
    device_peak_bytes: int
    device_budget_bytes: int | None
    host_arena_bytes: int
    expert_error_by_layer: Mapping[int, float]
    residency: Mapping[ExpertId, str]

    @classmethod
    def of(cls, steps: StepCounts, places: PlaceStats) -> EngineStats:
        values = {f.name: getattr(steps, f.name) for f in fields(steps)}
        values |= {f.name: getattr(places, f.name) for f in fields(places)}
        return cls(hits=sum(places.hits_by_layer.values()), misses=sum(places.misses_by_layer.values()), **values)

    @property
    def hit_rate(self) -> float | None:
        """Experts that were on the device when wanted; None where none was wanted."""
        wanted = self.hits + self.misses
        return self.hits / wanted if wanted else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        return self.decode_tokens / self.decode_s if self.decode_s else None

    @property
    def prefill_tokens_per_s(self) -> float | None:
        return self.prefill_tokens / self.prefill_s if self.prefill_s else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, the rates with them."""
        data: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("hits_by_layer", "misses_by_layer", "expert_error_by_layer", "residency"):
            data[name] = {str(key): value for key, value in data[name].items()}
        for name in ("bytes_by_path", "lane_busy_s"):
            data[name] = dict(data[name])
        rates = ("hit_rate", "decode_tokens_per_s", "prefill_tokens_per_s")
        return data | {name: getattr(self, name) for name in rates}
