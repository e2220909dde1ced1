"""Mixtral: sparse feed-forward in every layer, softmax over the chosen experts, optional window for all layers."""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.core.model import ModelSpec, TensorSpec
from moesaic.specs.base import MAX_LAYERS, Family, Fields, MoENames, attention, decoder_tensors, model, moe

# w2 is down: the published order is gate, down, up
NAMES = MoENames(router="block_sparse_moe.gate", expert="block_sparse_moe.experts.{e}", gate="w1", up="w3", down="w2")


def read(fields: Fields) -> ModelSpec:
    layer = moe(fields, width_key="intermediate_size", router="softmax_topk_renorm")
    return model(
        fields,
        attention(
            fields, kv_heads_default=True, qk_norm="none", sliding_window=fields.optional_count("sliding_window")
        ),
        (layer,) * fields.count("num_hidden_layers", maximum=MAX_LAYERS),
    )


def tensors(spec: ModelSpec) -> Iterator[TensorSpec]:
    return decoder_tensors(spec, NAMES)


FAMILY = Family(read, tensors)
