"""OLMoE (arXiv 2409.02060): RMSNorm over the whole query and key vectors before heads are split, optional clip."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from moesaic.core.model import ModelSpec
from moesaic.kernels.api import Kernels
from moesaic.models.decoder import SparseDecoder
from moesaic.models.layers import QKV, AttentionStep, CachedAttention, Linear, Norm


class OlmoeAttention:
    def __init__(self, spec: ModelSpec, weights: Mapping[str, Tensor], layer: int, kernels: Kernels) -> None:
        self.qkv = QKV.build(weights, layer)
        self.query_norm, self.key_norm = (
            Norm(weights[f"layers.{layer}.{name}_norm"], spec.norm_eps, kernels) for name in "qk"
        )
        self.clip = spec.attention.clip_qkv
        self.attend = CachedAttention(spec.attention, kernels)
        self.out = Linear.build(weights, f"layers.{layer}.o_proj")

    def __call__(self, x_TH: Tensor, step: AttentionStep) -> Tensor:
        query, key, value = self.qkv(x_TH)
        query, key = self.query_norm(query), self.key_norm(key)
        if self.clip is not None:
            query, key, value = (x.clamp(-self.clip, self.clip) for x in (query, key, value))
        query, key, value = (self.attend.heads(x) for x in (query, key, value))
        return self.out(self.attend(query, key, value, step))


def build(spec: ModelSpec, weights: Mapping[str, Tensor], kernels: Kernels) -> SparseDecoder:
    return SparseDecoder(spec, weights, kernels, OlmoeAttention)
