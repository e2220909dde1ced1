"""Qwen3-MoE: RMSNorm per head on queries and keys, many narrow experts, dense layers where the config says so."""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.core.model import ModelSpec, MoESpec, TensorSpec
from moesaic.specs.base import MAX_LAYERS, Family, Fields, MoENames, attention, decoder_tensors, model, moe

NAMES = MoENames(router="mlp.gate", expert="mlp.experts.{e}", gate="gate_proj", up="up_proj", down="down_proj")


def read(fields: Fields) -> ModelSpec:
    router = "softmax_topk_renorm" if fields.flag("norm_topk_prob") else "softmax_topk"
    # the window, where it is switched on, is that of every layer: the family has no max_window_layers
    windowed = fields.flag("use_sliding_window", default=False)
    return model(
        fields,
        attention(
            fields,
            kv_heads_default=False,
            qk_norm="head",
            bias=fields.flag("attention_bias", default=False),
            sliding_window=fields.optional_count("sliding_window") if windowed else None,
        ),
        _layers(fields, moe(fields, width_key="moe_intermediate_size", router=router)),
    )


def _layers(fields: Fields, sparse: MoESpec) -> tuple[MoESpec | int, ...]:
    """Layer i is sparse iff it is not in mlp_only_layers and decoder_sparse_step divides i + 1."""
    num_layers = fields.count("num_hidden_layers", maximum=MAX_LAYERS)
    step = fields.count("decoder_sparse_step")
    dense = fields.raw("mlp_only_layers")
    if dense is None:
        dense = []
    if not isinstance(dense, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in dense):
        raise fields.fault("mlp_only_layers", "is not a list of layer numbers")
    if any(not 0 <= i < num_layers for i in dense):
        raise fields.fault("mlp_only_layers", f"names a layer outside 0 to {num_layers - 1}")
    is_dense = [i in set(dense) or (i + 1) % step != 0 for i in range(num_layers)]
    if all(is_dense):
        raise fields.fault("decoder_sparse_step", "and mlp_only_layers leave no sparse layer", "this is a dense model")
    if not any(is_dense):
        return (sparse,) * num_layers
    if sparse.activation != "silu":
        raise fields.fault(
            "hidden_act", f"is {sparse.activation!r} in a model with dense layers", "supported there: silu"
        )
    width = fields.count("intermediate_size")
    return tuple(width if d else sparse for d in is_dense)


def tensors(spec: ModelSpec) -> Iterator[TensorSpec]:
    return decoder_tensors(spec, NAMES)


FAMILY = Family(read, tensors)
