"""The tensors of each preset family's checkpoint, in the order they are written.

Families that moesaic runs are listed by `specs`; the two that it only writes so far, Phi-3.5-MoE and DBRX, are here.
"""

from __future__ import annotations

from collections.abc import Iterator

from moesaic.bench.preset_configs import config_json
from moesaic.bench.presets import Geometry
from moesaic.core.model import TensorSpec
from moesaic.core.routing import ExpertId
from moesaic.specs import read_spec, tensor_specs


def preset_tensors(geometry: Geometry) -> tuple[TensorSpec, ...]:
    if geometry.family == "phimoe":
        return tuple(_phimoe(geometry))
    if geometry.family == "dbrx":
        return tuple(_dbrx(geometry))
    return tensor_specs(read_spec(config_json(geometry)))


def is_expert(tensor: TensorSpec) -> bool:
    """Whether the tensor belongs to routed experts, one of them or all of a layer."""
    return tensor.expert is not None or ".experts." in tensor.part


def _phimoe(g: Geometry) -> Iterator[TensorSpec]:
    """As Mixtral, with LayerNorm and a bias on every norm, projection and the head."""
    q_width, kv_width = g.num_heads * g.head_dim, g.num_kv_heads * g.head_dim
    projections = {
        "q_proj": (q_width, g.hidden),
        "k_proj": (kv_width, g.hidden),
        "v_proj": (kv_width, g.hidden),
        "o_proj": (g.hidden, q_width),
    }
    yield TensorSpec("model.embed_tokens.weight", (g.vocab, g.hidden), "embed_tokens")
    for i in range(g.num_layers):
        stored, part = f"model.layers.{i}.", f"layers.{i}."
        yield from _with_bias(stored + "input_layernorm", (g.hidden,), part + "input_norm")
        for name, shape in projections.items():
            yield from _with_bias(f"{stored}self_attn.{name}", shape, part + name)
        yield from _with_bias(stored + "post_attention_layernorm", (g.hidden,), part + "post_norm")
        sparse = stored + "block_sparse_moe."
        yield TensorSpec(sparse + "gate.weight", (g.num_experts, g.hidden), part + "router")
        for e in range(g.num_experts):
            stem = f"{sparse}experts.{e}."
            yield TensorSpec(stem + "w1.weight", (g.intermediate, g.hidden), "gate", ExpertId(i, e))
            yield TensorSpec(stem + "w3.weight", (g.intermediate, g.hidden), "up", ExpertId(i, e))
            yield TensorSpec(stem + "w2.weight", (g.hidden, g.intermediate), "down", ExpertId(i, e))
    yield from _with_bias("model.norm", (g.hidden,), "norm")
    yield from _with_bias("lm_head", (g.vocab, g.hidden), "lm_head")


def _with_bias(name: str, shape: tuple[int, ...], part: str) -> Iterator[TensorSpec]:
    yield TensorSpec(name + ".weight", shape, part)
    yield TensorSpec(name + ".bias", shape[:1], part + ".bias")


def _dbrx(g: Geometry) -> Iterator[TensorSpec]:
    """One projection for queries, keys and values, and all experts of a layer in three tensors [E * I, H]: down is
    stored transposed, like the other two."""
    qkv_width = (g.num_heads + 2 * g.num_kv_heads) * g.head_dim
    stacked = (g.num_experts * g.intermediate, g.hidden)
    yield TensorSpec("transformer.wte.weight", (g.vocab, g.hidden), "embed_tokens")
    for i in range(g.num_layers):
        stored, part = f"transformer.blocks.{i}.", f"layers.{i}."
        attention, experts = stored + "norm_attn_norm.", stored + "ffn.experts.mlp."
        yield TensorSpec(attention + "norm_1.weight", (g.hidden,), part + "input_norm")
        yield TensorSpec(attention + "attn.Wqkv.weight", (qkv_width, g.hidden), part + "qkv_proj")
        yield TensorSpec(attention + "attn.out_proj.weight", (g.hidden, g.hidden), part + "o_proj")
        yield TensorSpec(attention + "norm_2.weight", (g.hidden,), part + "post_norm")
        yield TensorSpec(stored + "ffn.router.layer.weight", (g.num_experts, g.hidden), part + "router")
        yield TensorSpec(experts + "w1", stacked, part + "experts.gate")
        yield TensorSpec(experts + "v1", stacked, part + "experts.up")
        yield TensorSpec(experts + "w2", stacked, part + "experts.down")
    yield TensorSpec("transformer.norm_f.weight", (g.hidden,), "norm")
    yield TensorSpec("lm_head.weight", (g.vocab, g.hidden), "lm_head")
