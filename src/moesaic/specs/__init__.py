"""Floor 1: what a model is, without torch: config.json -> ModelSpec, and the tensors its checkpoint holds."""

from __future__ import annotations

import re
from collections.abc import Mapping

from moesaic.core.model import ModelSpec, TensorSpec
from moesaic.core.registry import Registry
from moesaic.specs import mixtral, olmoe, qwen3_moe
from moesaic.specs.base import Family, Fields

FAMILIES: Registry[Family] = Registry(
    "model_type in config.json",
    {"mixtral": mixtral.FAMILY, "qwen3_moe": qwen3_moe.FAMILY, "olmoe": olmoe.FAMILY},
)

_INV_FREQ = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def read_spec(config: Mapping[str, object]) -> ModelSpec:
    """The geometry that a config.json describes. UserError names the key that is missing, wrong or unsupported."""
    fields = Fields(config)
    return FAMILIES[fields.text("model_type")].read(fields)


def tensor_specs(spec: ModelSpec) -> tuple[TensorSpec, ...]:
    """Every tensor that a checkpoint of `spec` must hold."""
    return tuple(FAMILIES[spec.model_type].tensors(spec))


def ignored(spec: ModelSpec, name: str) -> bool:
    """Whether `name` is a known tensor that no decoder needs: rotary tables that old writers saved, and the head
    of a model whose head is the embedding (loading still checks that the two are equal)."""
    return _INV_FREQ.fullmatch(name) is not None or (spec.tied_embeddings and name == "lm_head.weight")
