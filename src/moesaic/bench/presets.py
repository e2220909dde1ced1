"""Published geometries by name, and shrunk twins of the same shape for small machines.

A preset says how large a model is; what its config.json holds besides is in bench/preset_configs.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from moesaic.core.errors import UserError
from moesaic.core.registry import Registry

Family = Literal["mixtral", "qwen3_moe", "olmoe", "phimoe", "dbrx"]


@dataclass(frozen=True, slots=True)
class Geometry:
    """One model's shapes. `intermediate` is the width of one expert; `rope_theta` and the rest go to config.json."""

    family: Family
    num_layers: int
    hidden: int
    intermediate: int
    num_experts: int
    top_k: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    rope_theta: float
    norm_eps: float
    max_positions: int


_MIXTRAL = Geometry("mixtral", 32, 4096, 14336, 8, 2, 32, 8, 128, 32000, 1e6, 1e-5, 32768)
_QWEN3 = Geometry("qwen3_moe", 48, 2048, 768, 128, 8, 32, 4, 128, 151936, 1e6, 1e-6, 40960)
_OLMOE = Geometry("olmoe", 16, 2048, 1024, 64, 8, 16, 16, 128, 50304, 1e4, 1e-5, 4096)
_PHI35 = Geometry("phimoe", 32, 4096, 6400, 16, 2, 32, 8, 128, 32064, 1e4, 1e-5, 131072)
_DBRX = Geometry("dbrx", 40, 6144, 10752, 16, 4, 48, 8, 128, 100352, 5e5, 1e-5, 32768)


def _twin(geometry: Geometry, intermediate: int, num_experts: int, top_k: int) -> Geometry:
    """Two layers of the same family, small enough to write in a blink."""
    kv_heads = 4 if geometry.num_kv_heads == geometry.num_heads else 2
    return replace(
        geometry,
        num_layers=2,
        hidden=256,
        intermediate=intermediate,
        num_experts=num_experts,
        top_k=top_k,
        num_heads=4,
        num_kv_heads=kv_heads,
        head_dim=64,
        vocab=512,
    )


PRESETS: Registry[Geometry] = Registry(
    "preset",
    {
        "mixtral": _MIXTRAL,
        "mixtral-8l": replace(_MIXTRAL, num_layers=8),
        "mixtral-tiny": _twin(_MIXTRAL, 512, 8, 2),
        "qwen3": _QWEN3,
        "qwen3-12l": replace(_QWEN3, num_layers=12),
        "qwen3-tiny": _twin(_QWEN3, 256, 16, 4),
        # 3.6 GB of experts, for machines without a GPU
        "cpu-mid": replace(_QWEN3, num_layers=3, vocab=32000),
        "olmoe": _OLMOE,
        "olmoe-tiny": _twin(_OLMOE, 128, 16, 4),
        "phi35-moe": _PHI35,
        "phi35-moe-tiny": _twin(_PHI35, 256, 16, 2),
        "dbrx": _DBRX,
        "dbrx-tiny": _twin(_DBRX, 256, 16, 4),
    },
)


def geometry_of(preset: str, num_layers: int | None = None, vocab: int | None = None) -> Geometry:
    """The preset's geometry, with another depth or vocabulary where asked for. UserError names what is wrong."""
    geometry = PRESETS[preset]
    for name, value, least in (("layers", num_layers, 1), ("vocab", vocab, 257)):
        if value is not None and value < least:
            raise UserError(f"{name} is {value}", f"give at least {least}")
    return replace(
        geometry,
        num_layers=geometry.num_layers if num_layers is None else num_layers,
        vocab=geometry.vocab if vocab is None else vocab,
    )
