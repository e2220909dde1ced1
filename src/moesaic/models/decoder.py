"""The forward pass that Llama-like MoE families share: embed, then per layer attention and feed-forward, then the norm.

A family adds its attention (its own file): what happens to queries, keys and values before they meet the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from moesaic.core.model import ModelSpec, MoESpec
from moesaic.kernels.api import Kernels
from moesaic.models.base import StepBatch, StepRun
from moesaic.models.layers import AttentionStep, DenseMLP, Norm, Rope, linear_float32
from moesaic.models.router import ROUTERS


class Attention(Protocol):
    def __call__(self, x_TH: Tensor, step: AttentionStep) -> Tensor:
        """[T, H] of the normed input [T, H]; writes the step's keys and values into its cache."""
        ...


class BuildAttention(Protocol):
    def __call__(self, spec: ModelSpec, weights: Mapping[str, Tensor], layer: int, kernels: Kernels) -> Attention: ...


class SparseDecoder:
    """See models.base.Decoder. Residuals rest in the model's dtype; router and vocabulary logits are float32."""

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Tensor], kernels: Kernels, build_attention: BuildAttention
    ) -> None:
        self.spec = spec
        self._embed = weights["embed_tokens"]
        self._rope = Rope.build(spec.attention, self._embed.device)
        self._layers = [
            _Layer(spec, weights, i, kernels, build_attention(spec, weights, i, kernels))
            for i in range(len(spec.layers))
        ]
        self._norm = Norm(weights["norm"], spec.norm_eps, kernels)
        self._head = self._embed if spec.tied_embeddings else weights["lm_head"]

    def forward(self, batch: StepBatch, run: StepRun) -> Tensor:
        with run.op("embed"):
            x_TH = F.embedding(batch.token_ids_T, self._embed)
            cos_TD, sin_TD = self._rope(batch.positions_T)
        for i, layer in enumerate(self._layers):
            with run.op(f"L{i}.attn"):
                step = AttentionStep(cos_TD, sin_TD, batch.slot_T, batch.ragged, batch.kv[i])
                x_TH = x_TH + layer.attention(layer.input_norm(x_TH), step)
            if layer.dense is not None:
                with run.op(f"L{i}.mlp"):
                    x_TH.add_(layer.dense(layer.post_norm(x_TH)))
                continue
            with run.op(f"L{i}.router"):
                normed_TH = layer.post_norm(x_TH)
                routing = layer.route(linear_float32(normed_TH, layer.router), layer.top_k)
            x_TH.add_(run.experts(i, normed_TH, routing))
        with run.op("head"):
            return self._norm(x_TH)

    def logits(self, hidden_RH: Tensor) -> Tensor:
        return linear_float32(hidden_RH, self._head)


class _Layer:
    """One layer's parts. `dense` is None where the layer is sparse; a dense one has no router."""

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Tensor], i: int, kernels: Kernels, attention: Attention
    ) -> None:
        self.attention = attention
        self.input_norm = Norm(weights[f"layers.{i}.input_norm"], spec.norm_eps, kernels)
        self.post_norm = Norm(weights[f"layers.{i}.post_norm"], spec.norm_eps, kernels)
        sparse = spec.layers[i]
        if not isinstance(sparse, MoESpec):
            self.dense: DenseMLP | None = DenseMLP.build(weights, i)
            return
        self.dense = None
        self.router = weights[f"layers.{i}.router"]
        self.route = ROUTERS[sparse.router]
        self.top_k = sparse.top_k
