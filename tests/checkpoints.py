"""Small checkpoints written by hand, byte by byte, so that a test can put one byte wrong. Standard library only."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path

from moesaic.specs import read_spec, tensor_specs

BITS = {"BF16": 16, "F16": 16, "F32": 32, "I8": 8, "I64": 64, "F8_E4M3": 8}

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3 = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 32,
    "intermediate_size": 80,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
OLMOE = {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "norm_topk_prob": False,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "clip_qkv": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
CONFIGS = {"mixtral": MIXTRAL, "qwen3_moe": QWEN3, "olmoe": OLMOE}


def header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict:
    """The header of a file that holds `tensors` (name -> dtype, shape) one after the other."""
    table, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + BITS[dtype] * prod(shape) // 8
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return table


def file_bytes(table: object, data: bytes) -> bytes:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor_table(config: Mapping, dtype: str = "BF16") -> dict[str, tuple[str, tuple[int, ...]]]:
    return {t.name: (dtype, t.shape) for t in tensor_specs(read_spec(config))}


def random_bytes(num_bytes: int, seed: int = 0) -> bytes:
    """Bytes whose 16-bit and 32-bit words are finite floats of moderate size, whatever the dtype."""
    chance = random.Random(seed)
    return bytes(b if i % 2 == 0 else (b & 0x80) | 0x3E for i, b in enumerate(chance.randbytes(num_bytes)))


def write_shard(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], seed: int = 0) -> None:
    table = header(tensors)
    size = max((entry["data_offsets"][1] for entry in table.values()), default=0)
    path.write_bytes(file_bytes(table, random_bytes(size, seed)))


def write_checkpoint(directory: Path, config: Mapping, num_shards: int = 1, dtype: str = "BF16", seed: int = 0) -> Path:
    """A whole checkpoint of random weights without tokenizer; shards and an index where `num_shards` > 1."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    table = tensor_table(config, dtype)
    if num_shards == 1:
        write_shard(directory / "model.safetensors", table, seed)
        return directory
    weight_map, names = {}, list(table)
    for i in range(num_shards):
        file = f"model-{i + 1:05d}-of-{num_shards:05d}.safetensors"
        part = names[i * len(names) // num_shards : (i + 1) * len(names) // num_shards]
        write_shard(directory / file, {name: table[name] for name in part}, seed + i)
        weight_map |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory
