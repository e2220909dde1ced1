"""What a model is, in shapes and names: no tensors, no framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moesaic.core.routing import ExpertId


@dataclass(frozen=True, slots=True)
class MoESpec:
    """A sparse feed-forward layer. `router` names a rule in models/router.py, which holds the formulas."""

    num_experts: int
    top_k: int
    intermediate: int
    router: str
    activation: str = "silu"
    shared_intermediate: int = 0  # width of the always-on shared expert, 0: none


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention. `qk_norm`: RMSNorm per head ("head"), over all heads ("full") or none."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    qk_norm: Literal["none", "head", "full"] = "none"
    bias: bool = False
    sliding_window: int | None = None  # key j is visible to query i iff i - window < j <= i
    clip_qkv: float | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One checkpoint's geometry. `layers` holds a MoESpec, or an int for a dense layer's intermediate size."""

    model_type: str
    hidden: int
    vocab: int
    attention: AttentionSpec
    layers: tuple[MoESpec | int, ...]
    norm_eps: float
    max_positions: int
    tied_embeddings: bool
    dtype: str = "bfloat16"  # the checkpoint's own, as config.json names it

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(i for i, layer in enumerate(self.layers) if isinstance(layer, MoESpec))

    def moe(self, layer: int) -> MoESpec:
        spec = self.layers[layer]
        assert isinstance(spec, MoESpec), f"layer {layer} is dense"
        return spec

    @property
    def num_experts(self) -> int:
        """Routed experts of all layers together."""
        return sum(self.moe(layer).num_experts for layer in self.moe_layers)

    def experts(self) -> tuple[ExpertId, ...]:
        return tuple(ExpertId(layer, e) for layer in self.moe_layers for e in range(self.moe(layer).num_experts))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that a checkpoint must hold.

    `name` and `shape` are the checkpoint's. `part` says where it goes: for an expert's tensor "gate" [I, H],
    "up" [I, H] or "down" [H, I] of `expert`; otherwise the decoder's own name, such as "layers.3.q_proj".
    """

    name: str
    shape: tuple[int, ...]
    part: str
    expert: ExpertId | None = None
