"""The blocks that decoders are built of. Weights are references into what the loader placed: nothing is copied.

Shape suffixes: T tokens, H hidden, N query heads, G key/value heads, D head dimension, V rows of a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from moesaic.core.model import AttentionSpec
from moesaic.kernels.api import Kernels, PagedKV, Ragged

_WIDENED_BYTES = 4 << 20  # of a 16-bit matrix widened at once on a CPU: stays in its caches


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """What one layer's attention needs to know of the step beside its input."""

    cos_TD: Tensor
    sin_TD: Tensor
    slot_T: Tensor
    ragged: Ragged
    kv: PagedKV


@dataclass(frozen=True, slots=True)
class Rope:
    """Cosines and sines of a step's positions, from D / 2 frequencies; made once per step, no table is kept."""

    inv_freq: Tensor

    @classmethod
    def build(cls, spec: AttentionSpec, device: torch.device) -> Rope:
        exponent = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
        return cls((1.0 / (spec.rope_theta**exponent)).to(device))

    def __call__(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, float32 [T, D], the two halves equal."""
        angles_TD = (positions_T.float().unsqueeze(1) * self.inv_freq).repeat(1, 2)
        return angles_TD.cos(), angles_TD.sin()


@dataclass(frozen=True, slots=True)
class Norm:
    """RMSNorm."""

    weight: Tensor
    eps: float
    kernels: Kernels

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def build(cls, weights: Mapping[str, Tensor], name: str) -> Linear:
        return cls(weights[name], weights.get(f"{name}.bias"))

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class QKV:
    """The query, key and value projections of one layer."""

    query: Linear
    key: Linear
    value: Linear

    @classmethod
    def build(cls, weights: Mapping[str, Tensor], layer: int) -> QKV:
        return cls(*(Linear.build(weights, f"layers.{layer}.{name}_proj") for name in "qkv"))

    def __call__(self, x_TH: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[T, N * D], [T, G * D] and [T, G * D]."""
        return self.query(x_TH), self.key(x_TH), self.value(x_TH)


@dataclass(frozen=True, slots=True)
class CachedAttention:
    """What attention is in every family once queries, keys and values are there: rotary, cache, attention."""

    spec: AttentionSpec
    kernels: Kernels

    def heads(self, x: Tensor) -> Tensor:
        """[T, heads * D] -> [T, heads, D], a view."""
        return x.unflatten(1, (-1, self.spec.head_dim))

    def __call__(self, query_TND: Tensor, key_TGD: Tensor, value_TGD: Tensor, step: AttentionStep) -> Tensor:
        """[T, N * D]. Writes the step's keys and values into its cache."""
        # one rotation for both: half the launches
        rotated = self.kernels.rotary(torch.cat((query_TND, key_TGD), dim=1), step.cos_TD, step.sin_TD)
        query_TND, key_TGD = rotated.split((self.spec.num_heads, self.spec.num_kv_heads), dim=1)
        self.kernels.write_kv(key_TGD, value_TGD, step.kv, step.slot_T)
        scale = self.spec.head_dim**-0.5
        mixed_TND = self.kernels.paged_attention(query_TND, step.kv, step.ragged, scale, self.spec.sliding_window)
        return mixed_TND.flatten(1)


@dataclass(frozen=True, slots=True)
class DenseMLP:
    """The feed-forward part of a dense layer: down(silu(gate x) * up x)."""

    gate: Linear
    up: Linear
    down: Linear

    @classmethod
    def build(cls, weights: Mapping[str, Tensor], layer: int) -> DenseMLP:
        return cls(*(Linear.build(weights, f"layers.{layer}.mlp.{name}") for name in ("gate", "up", "down")))

    def __call__(self, x_TH: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x_TH)) * self.up(x_TH))


def linear_float32(x_TH: Tensor, weight_VH: Tensor) -> Tensor:
    """x @ weight.T as float32 [T, V], never rounded to 16 bits: for router and vocabulary logits, where ties decide.

    CUDA multiplies 16-bit operands into float32; a CPU widens the matrix some rows at a time."""
    if weight_VH.dtype == torch.float32:
        return F.linear(x_TH, weight_VH)
    if weight_VH.is_cuda:
        return torch.mm(x_TH, weight_VH.t(), out_dtype=torch.float32)
    x_TH = x_TH.float()
    step = max(1, _WIDENED_BYTES // (4 * weight_VH.shape[1]))
    parts = [F.linear(x_TH, rows.float()) for rows in weight_VH.split(step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
