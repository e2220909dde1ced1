"""Mixtral (arXiv 2401.04088): plain grouped-query attention, with a sliding window where the checkpoint has one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from moesaic.core.model import ModelSpec
from moesaic.kernels.api import Kernels
from moesaic.models.decoder import SparseDecoder
from moesaic.models.layers import QKV, AttentionStep, CachedAttention, Linear


class MixtralAttention:
    def __init__(self, spec: ModelSpec, weights: Mapping[str, Tensor], layer: int, kernels: Kernels) -> None:
        self.qkv = QKV.build(weights, layer)
        self.attend = CachedAttention(spec.attention, kernels)
        self.out = Linear.build(weights, f"layers.{layer}.o_proj")

    def __call__(self, x_TH: Tensor, step: AttentionStep) -> Tensor:
        query, key, value = (self.attend.heads(x) for x in self.qkv(x_TH))
        return self.out(self.attend(query, key, value, step))


def build(spec: ModelSpec, weights: Mapping[str, Tensor], kernels: Kernels) -> SparseDecoder:
    return SparseDecoder(spec, weights, kernels, MixtralAttention)
