"""Qwen3-MoE (arXiv 2505.09388): RMSNorm over each query and key head; a head's width is its own, not hidden / heads."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from moesaic.core.model import ModelSpec
from moesaic.kernels.api import Kernels
from moesaic.models.decoder import SparseDecoder
from moesaic.models.layers import QKV, AttentionStep, CachedAttention, Linear, Norm


class Qwen3MoeAttention:
    def __init__(self, spec: ModelSpec, weights: Mapping[str, Tensor], layer: int, kernels: Kernels) -> None:
        self.qkv = QKV.build(weights, layer)
        self.query_norm, self.key_norm = (
            Norm(weights[f"layers.{layer}.{name}_norm"], spec.norm_eps, kernels) for name in "qk"
        )
        self.attend = CachedAttention(spec.attention, kernels)
        self.out = Linear.build(weights, f"layers.{layer}.o_proj")

    def __call__(self, x_TH: Tensor, step: AttentionStep) -> Tensor:
        query, key, value = (self.attend.heads(x) for x in self.qkv(x_TH))
        return self.out(self.attend(self.query_norm(query), self.key_norm(key), value, step))


def build(spec: ModelSpec, weights: Mapping[str, Tensor], kernels: Kernels) -> SparseDecoder:
    return SparseDecoder(spec, weights, kernels, Qwen3MoeAttention)
