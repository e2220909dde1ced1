"""The named workloads: everybody measures the same thing under the same name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from moesaic.core.registry import Registry
from moesaic.core.units import GiB, format_bytes


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained checkpoint that the user brings, and text by domain; without one, the embedded model."""


@dataclass(frozen=True, slots=True)
class RandomModel:
    """Random weights of a published geometry, as `moesaic make-checkpoint PRESET` writes them."""

    preset: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DecodeWorkload:
    """One sequence: a prompt, then `new_tokens` sampled at temperature 1, whatever they are.

    Either `device_bytes` limits all that the process holds on the device, or `expert_shares` gives, one row
    each, the share of all experts' bytes that the device may hold.
    """

    name: str
    description: str
    model: TrainedModel | RandomModel
    device_bytes: int | None = None
    expert_shares: tuple[float, ...] = ()
    prompt_tokens: int = 512
    new_tokens: int = 64
    modes: tuple[str, ...] = ("fetch_misses", "cpu_misses")
    device: Literal["auto", "cpu"] = "auto"
    expert_format: str = "auto"  # quantized while the checkpoint loads
    seed: int = 0

    def __post_init__(self) -> None:
        assert (self.device_bytes is None) == bool(self.expert_shares), "exactly one kind of limit"
        assert self.new_tokens >= 2, "inter-token times need two tokens"

    def budgets(self) -> tuple[Budget, ...]:
        if self.device_bytes is not None:
            return (Budget(device_memory=self.device_bytes),)
        return tuple(Budget(expert_memory=f"{share:.0%}") for share in self.expert_shares)


@dataclass(frozen=True, slots=True)
class Budget:
    """One row of a workload: what the device may hold, in the words of `LLM`."""

    device_memory: int | None = None
    expert_memory: str | None = field(default=None)

    def __str__(self) -> str:
        if self.device_memory is not None:
            return f"{format_bytes(self.device_memory)} device"
        return f"{self.expert_memory} of expert bytes"


_ALL = (
    DecodeWorkload(
        name="decode/small",
        description="a small trained model, real routing, text by domain; 25, 40 and 60 % of expert bytes",
        model=TrainedModel(),
        expert_shares=(0.25, 0.40, 0.60),
    ),
    DecodeWorkload(
        name="decode/cpu-mid",
        description="Qwen3-30B-A3B geometry, 3 layers (3.4 GiB of experts), vocabulary cut to 32,000; 1 GiB device",
        model=RandomModel("cpu-mid"),
        device_bytes=1 * GiB,
        device="cpu",
    ),
    DecodeWorkload(
        name="decode/mixtral-8l",
        description="Mixtral 8x7B geometry, 8 of 32 layers (23 GB of experts), bf16; 6 GiB device",
        model=RandomModel("mixtral-8l"),
        device_bytes=6 * GiB,
    ),
    DecodeWorkload(
        name="decode/qwen3-12l",
        description="Qwen3-30B-A3B geometry, 12 of 48 layers (14.5 GB of experts), bf16; 4 GiB device",
        model=RandomModel("qwen3-12l"),
        device_bytes=4 * GiB,
    ),
    DecodeWorkload(
        name="decode/mixtral-8l-int4",
        description="decode/mixtral-8l with experts in int4, groups of 64 (6.1 GB of experts); 3 GiB device",
        model=RandomModel("mixtral-8l"),
        device_bytes=3 * GiB,
        expert_format="int4",
    ),
    DecodeWorkload(
        name="decode/qwen3-12l-int4",
        description="decode/qwen3-12l with experts in int4, groups of 64 (3.9 GB of experts); 2 GiB device",
        model=RandomModel("qwen3-12l"),
        device_bytes=2 * GiB,
        expert_format="int4",
    ),
)
WORKLOADS: Registry[DecodeWorkload] = Registry("workload", {w.name: w for w in _ALL})
