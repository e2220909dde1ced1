"""OLMoE: RMSNorm over the full query and key vectors before heads are split, weights not renormalised by default."""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.core.model import ModelSpec, TensorSpec
from moesaic.specs.base import MAX_LAYERS, Family, Fields, MoENames, attention, decoder_tensors, model, moe

NAMES = MoENames(router="mlp.gate", expert="mlp.experts.{e}", gate="gate_proj", up="up_proj", down="down_proj")


def read(fields: Fields) -> ModelSpec:
    if fields.config.get("sliding_window") is not None:
        raise fields.fault("sliding_window", "is set", "olmoe has full attention only, set it to null")
    router = "softmax_topk_renorm" if fields.flag("norm_topk_prob") else "softmax_topk"
    layer = moe(fields, width_key="intermediate_size", router=router)
    clip = fields.number("clip_qkv") if fields.config.get("clip_qkv") is not None else None
    return model(
        fields,
        attention(
            fields,
            kv_heads_default=True,
            qk_norm="full",
            bias=fields.flag("attention_bias", default=False),
            clip_qkv=clip,
        ),
        (layer,) * fields.count("num_hidden_layers", maximum=MAX_LAYERS),
        norm_eps=1e-5,  # one published revision lacks the key; 1e-5 is what it was trained with
    )


def tensors(spec: ModelSpec) -> Iterator[TensorSpec]:
    return decoder_tensors(spec, NAMES)


FAMILY = Family(read, tensors)
