"""Small random checkpoints: any geometry, published tensor names, a byte-level tokenizer. For tests and first steps."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from moesaic.core.model import TensorSpec
from moesaic.core.registry import Registry
from moesaic.models.byte_tokenizer import END_OF_TEXT_ID, NUM_TOKENS, tokenizer_config_json, tokenizer_json
from moesaic.specs import read_spec, tensor_specs


def write_checkpoint(
    directory: Path,
    config: Mapping[str, object],
    seed: int = 0,
    std: float = 0.15,
    num_shards: int = 1,
    dtype: str = "bfloat16",
) -> Path:
    """Writes a model of `config` (a config.json's content) with random weights, and returns the directory.

    Weights are normal with deviation `std`, norms 1 +- 0.1 (below std 0.15 tiny models answer almost alike to
    anything); the same seed gives the same values in any number of shards. UserError where the config names no
    known model; ValueError where the vocabulary is too small for bytes.
    """
    spec = read_spec(config)
    if spec.vocab < NUM_TOKENS:
        raise ValueError(f"vocab_size is {spec.vocab}: the byte-level tokenizer needs {NUM_TOKENS}")
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {t.name: _values(t, std, generator).to(getattr(torch, dtype)) for t in tensor_specs(spec)}
    _save(directory, tensors, num_shards)
    _write_json(directory / "config.json", {**config, "dtype": dtype})
    _write_json(directory / "generation_config.json", {"bos_token_id": END_OF_TEXT_ID, "eos_token_id": END_OF_TEXT_ID})
    _write_json(directory / "tokenizer.json", tokenizer_json())
    _write_json(directory / "tokenizer_config.json", tokenizer_config_json())
    return directory


def _values(tensor: TensorSpec, std: float, generator: torch.Generator) -> Tensor:
    values = torch.randn(tensor.shape, generator=generator)
    return 1.0 + 0.1 * values if tensor.part.endswith("norm") else std * values


def _save(directory: Path, tensors: Mapping[str, Tensor], num_shards: int) -> None:
    if num_shards == 1:
        save_file(dict(tensors), directory / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    names = list(tensors)
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        held = names[shard * len(names) // num_shards : (shard + 1) * len(names) // num_shards]
        save_file({name: tensors[name] for name in held}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(held, file)
    total = sum(t.numel() * t.itemsize for t in tensors.values())
    _write_json(
        directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


# -- random geometries ---------------------------------------------------------------------------------------
def random_config(model_type: str, seed: int) -> dict[str, object]:
    """A small config.json of a family: heads, widths, experts, ties and the family's own traits vary with the seed."""
    return CONFIGS[model_type](random.Random(f"{model_type}/{seed}"))


def _common(chance: random.Random, model_type: str, architecture: str) -> dict[str, object]:
    kv_heads = chance.choice([1, 2, 3])
    heads = kv_heads * chance.choice([1, 2, 4])
    num_experts = chance.choice([3, 4, 8, 13])
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": heads * chance.choice([8, 16, 20]),
        "num_hidden_layers": chance.choice([2, 3, 4]),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_experts_per_tok": chance.randint(1, min(num_experts, 5)),
        "num_experts": num_experts,
        "vocab_size": chance.choice([257, 300, 512]),
        "max_position_embeddings": 512,
        "hidden_act": "silu",
        "rms_norm_eps": chance.choice([1e-5, 1e-6]),
        "rope_theta": chance.choice([1e4, 1e6]),
        "tie_word_embeddings": chance.random() < 0.5,
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": END_OF_TEXT_ID,
        "pad_token_id": None,
    }


def _mixtral(chance: random.Random) -> dict[str, object]:
    config = _common(chance, "mixtral", "MixtralForCausalLM")
    config["num_local_experts"] = config.pop("num_experts")
    return config | {
        "intermediate_size": chance.choice([40, 96, 144, 256]),
        "sliding_window": chance.choice([None, 5, 16]),
    }


def _qwen3_moe(chance: random.Random) -> dict[str, object]:
    config = _common(chance, "qwen3_moe", "Qwen3MoeForCausalLM")
    return config | {
        "head_dim": chance.choice([12, 16, 32]),
        "moe_intermediate_size": chance.choice([24, 48, 96, 130]),
        "intermediate_size": chance.choice([56, 100]),
        "norm_topk_prob": chance.random() < 0.5,
        "attention_bias": chance.random() < 0.25,
        "mlp_only_layers": chance.choice([[], [], [0], [1]]),
        "decoder_sparse_step": 1,
        "use_sliding_window": False,
        "sliding_window": None,
    }


def _olmoe(chance: random.Random) -> dict[str, object]:
    config = _common(chance, "olmoe", "OlmoeForCausalLM")
    return config | {
        "intermediate_size": chance.choice([32, 80, 128]),
        "norm_topk_prob": chance.random() < 0.5,
        "clip_qkv": chance.choice([None, 0.8]),
        "attention_bias": chance.random() < 0.25,
    }


CONFIGS = Registry("model_type", {"mixtral": _mixtral, "qwen3_moe": _qwen3_moe, "olmoe": _olmoe})
