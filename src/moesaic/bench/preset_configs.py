"""config.json of each preset family, as the published models have it: every key that the model classes read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moesaic.bench.presets import Family, Geometry
from moesaic.models.byte_tokenizer import END_OF_TEXT_ID
from moesaic.models.noise import STD

PHI_ORIGINAL_POSITIONS = 4096
PHI_MSCALE = 1.243163121016122


def config_json(geometry: Geometry) -> dict[str, Any]:
    """The content of config.json, keys in the order they are written."""
    return _CONFIGS[geometry.family](geometry)


def generation_config_json() -> dict[str, Any]:
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), END_OF_TEXT_ID)
    return {**ids, "do_sample": True, "temperature": 1.0}


def _decoder(g: Geometry) -> dict[str, Any]:
    """What Mixtral and its relatives share."""
    return {
        "hidden_size": g.hidden,
        "num_hidden_layers": g.num_layers,
        "num_attention_heads": g.num_heads,
        "num_key_value_heads": g.num_kv_heads,
        "head_dim": g.head_dim,
        "vocab_size": g.vocab,
        "hidden_act": "silu",
        "num_experts_per_tok": g.top_k,
        "rms_norm_eps": g.norm_eps,
        "max_position_embeddings": g.max_positions,
        "attention_dropout": 0.0,
        "initializer_range": STD,
        "tie_word_embeddings": False,
        "use_cache": True,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": END_OF_TEXT_ID,
        "rope_theta": g.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": g.rope_theta},
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "sliding_window": None,
    }


def _mixtral(g: Geometry) -> dict[str, Any]:
    return _decoder(g) | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "intermediate_size": g.intermediate,
        "num_local_experts": g.num_experts,
        "router_jitter_noise": 0.0,
    }


def _qwen3_moe(g: Geometry) -> dict[str, Any]:
    return _decoder(g) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "intermediate_size": g.intermediate * 8,
        "moe_intermediate_size": g.intermediate,
        "num_experts": g.num_experts,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": False,
        "use_sliding_window": False,
    }


def _olmoe(g: Geometry) -> dict[str, Any]:
    config = _decoder(g) | {
        "architectures": ["OlmoeForCausalLM"],
        "model_type": "olmoe",
        "intermediate_size": g.intermediate,
        "num_experts": g.num_experts,
        "norm_topk_prob": False,
        "attention_bias": False,
        "clip_qkv": None,
        "pad_token_id": END_OF_TEXT_ID,
    }
    del config["sliding_window"]
    return config


def _phimoe(g: Geometry) -> dict[str, Any]:
    long_rope = {
        "rope_type": "longrope",
        "rope_theta": g.rope_theta,
        "short_factor": _factors(g.head_dim // 2, 1.0, 3.0),
        "long_factor": _factors(g.head_dim // 2, 1.0, 60.0),
        "short_mscale": PHI_MSCALE,
        "long_mscale": PHI_MSCALE,
        "original_max_position_embeddings": PHI_ORIGINAL_POSITIONS,
    }
    return _decoder(g) | {
        "architectures": ["PhimoeForCausalLM"],
        "model_type": "phimoe",
        "intermediate_size": g.intermediate,
        "num_local_experts": g.num_experts,
        "router_jitter_noise": 0.01,
        "input_jitter_noise": 0.01,
        "attention_bias": True,
        "lm_head_bias": True,
        "rope_parameters": long_rope,
        "original_max_position_embeddings": PHI_ORIGINAL_POSITIONS,
        "sliding_window": g.max_positions,
    }


def _factors(count: int, first: float, last: float) -> list[float]:
    """A smooth table in place of the published one, which was searched for by its authors: rising, one number per
    rotary frequency."""
    return [round(first * (last / first) ** (i / (count - 1)), 4) for i in range(count)]


def _dbrx(g: Geometry) -> dict[str, Any]:
    return {
        "architectures": ["DbrxForCausalLM"],
        "model_type": "dbrx",
        "d_model": g.hidden,
        "n_heads": g.num_heads,
        "n_layers": g.num_layers,
        "max_seq_len": g.max_positions,
        "vocab_size": g.vocab,
        "attn_config": {"clip_qkv": 8, "kv_n_heads": g.num_kv_heads, "rope_theta": g.rope_theta},
        "ffn_config": {
            "ffn_hidden_size": g.intermediate,
            "moe_jitter_eps": 0,
            "moe_loss_weight": 0.05,
            "moe_num_experts": g.num_experts,
            "moe_top_k": g.top_k,
            "moe_normalize_expert_weights": 1.0,
        },
        "initializer_range": STD,
        "tie_word_embeddings": False,
        "use_cache": True,
        "output_router_logits": False,
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": END_OF_TEXT_ID,
        "rope_theta": g.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": g.rope_theta},
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


_CONFIGS: Mapping[Family, Callable[[Geometry], dict[str, Any]]] = {
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "dbrx": _dbrx,
}
