"""What is planned: the workload, where bytes rest, how a step is cut, and what that should give."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from moesaic.core.errors import UserError
from moesaic.core.model import AttentionSpec, ModelSpec, MoESpec
from moesaic.core.places import DEVICE, HardwareProfile, Lane, LinkSpec, Place, TierSpec


@dataclass(frozen=True, slots=True)
class Workload:
    """`goodput` asks for tokens/s among requests whose TTFT and ITL stay under their limits."""

    num_requests: int
    prompt_tokens: int
    output_tokens: int
    objective: Literal["throughput", "latency", "goodput"]
    ttft_limit_s: float | None = None
    itl_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where bytes live: the share of each kind on each place; each sums to 1."""

    weights: Mapping[Place, float]
    kv: Mapping[Place, float]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a step runs: sizes, where each half computes, and the deciders by name."""

    schedule: str  # "layerwise" | "cgopipe" | "expert_parallel" | ...
    assignment: str  # "all_on_device" | "fetch_misses" | "cpu_misses" | ...
    batch_size: int = 1
    micro_batch_size: int = 1
    attention: Place = DEVICE
    experts: Place = DEVICE
    eviction: str = "lru"
    admission: str = "always"
    prefetch: str = "none"
    cache_sets: int = 0  # 0: no cache beyond the placed weights
    cache_ways: int = 1
    page_bytes: int = 0
    num_groups: int = 1
    prefill_chunk: int = 512
    cpu_threads: int = 0  # 0: as many as the machine grants
    weight_format: str = "bf16"
    kv_format: str = "bf16"
    tensor_parallel: int = 1
    expert_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Estimate:
    tokens_s: float
    step_s: float
    bound_by: Lane  # the lane that is busiest: what to buy next
    peak_bytes: Mapping[Place, int]


@dataclass(frozen=True, slots=True)
class Plan:
    model: ModelSpec
    hardware: HardwareProfile
    workload: Workload
    placement: Placement
    pipeline: Pipeline
    estimate: Estimate

    def to_json(self) -> str:
        return json.dumps(_plain(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Raises UserError where the text is no plan, naming the part that does not fit."""
        try:
            data = json.loads(text)
            model = dict(data["model"])
            model["attention"] = AttentionSpec(**model["attention"])
            model["layers"] = tuple(x if isinstance(x, int) else MoESpec(**x) for x in model["layers"])
            hardware = data["hardware"]
            pipeline = dict(data["pipeline"])
            for key in ("attention", "experts"):
                pipeline[key] = Place.parse(pipeline[key])
            estimate = dict(data["estimate"])
            estimate["bound_by"] = Lane.parse(estimate["bound_by"])
            estimate["peak_bytes"] = _by_place(estimate["peak_bytes"])
            return cls(
                ModelSpec(**model),
                HardwareProfile(
                    hardware["name"],
                    {Place.parse(k): TierSpec(**v) for k, v in hardware["tiers"].items()},
                    {_places(k): LinkSpec(**v) for k, v in hardware["links"].items()},
                    hardware["source"],
                ),
                Workload(**data["workload"]),
                Placement(_by_place(data["placement"]["weights"]), _by_place(data["placement"]["kv"])),
                Pipeline(**pipeline),
                Estimate(**estimate),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"plan file: {type(error).__name__} {error}", "write it anew with `moesaic plan`"
            ) from error


def _places(text: str) -> tuple[Place, Place]:
    src, _, dst = text.partition("-")
    return Place.parse(src), Place.parse(dst)


def _by_place(data: Mapping[str, Any]) -> dict[Place, Any]:
    return {Place.parse(key): value for key, value in data.items()}


def _plain(value: Any) -> Any:
    """Dataclasses to JSON values; places and lanes in their text form, keys as well."""
    if isinstance(value, (Place, Lane)):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def _key(key: Any) -> str:
    return str(key) if isinstance(key, Place) else "-".join(str(part) for part in key)
