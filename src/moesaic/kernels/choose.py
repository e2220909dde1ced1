"""Which implementation serves each op on a device, and why. The only place where that is decided."""

from __future__ import annotations

from typing import Literal

import torch

from moesaic.kernels import cpu, library, reference
from moesaic.kernels.api import GroupedExperts, Kernels, PagedAttention, RmsNorm
from moesaic.kernels.cpu.attention import CpuAttention
from moesaic.kernels.cpu.experts import CpuExperts, best_isa
from moesaic.kernels.cpu.pool import pool_size


def kernels(device: torch.device, dtype: torch.dtype, prefer: Literal["auto", "reference"] = "auto") -> Kernels:
    """The implementations for `device` and activations of `dtype` (float32, bfloat16 or float16).

    `prefer="reference"` takes the slow twins for every op, for comparison."""
    if prefer == "reference":
        why = dict.fromkeys(_OPS, "the slow twin, asked for")
        return Kernels(
            rms_norm=reference.rms_norm,
            rotary=reference.rotary,
            write_kv=reference.write_kv,
            paged_attention=reference.paged_attention,
            grouped_experts=reference.grouped_experts,
            why=why,
        )
    rms_norm, norm_why = _rms_norm(device)
    attention, attention_why = _paged_attention(device)
    grouped_experts, experts_why = _grouped_experts(device)
    return Kernels(
        rms_norm=rms_norm,
        rotary=library.rotary,
        write_kv=library.write_kv,
        paged_attention=attention,
        grouped_experts=grouped_experts,
        why=dict.fromkeys(_OPS, "torch operators")
        | {"rms_norm": norm_why, "paged_attention": attention_why, "grouped_experts": experts_why},
    )


def _rms_norm(device: torch.device) -> tuple[RmsNorm, str]:
    if device.type != "cpu":
        return library.rms_norm, "torch operators: two launches cost the host less than one of Triton"
    extension = cpu.load()
    if extension.loaded:
        return cpu.rms_norm, "compiled for the CPU"
    return library.rms_norm, f"torch operators: compiled kernels {extension.why_not}"


def _paged_attention(device: torch.device) -> tuple[PagedAttention, str]:
    if device.type != "cpu":
        return library.paged_attention, "torch operators"
    extension = cpu.load()
    if extension.loaded:
        return CpuAttention(), f"compiled for the CPU, {best_isa()}: prompts and single tokens alike"
    return library.paged_attention, f"torch operators: compiled kernels {extension.why_not}"


def _grouped_experts(device: torch.device) -> tuple[GroupedExperts, str]:
    if device.type != "cpu":
        return library.grouped_experts, "torch operators"
    extension = cpu.load()
    if extension.loaded:
        return CpuExperts(), f"compiled for the CPU, {best_isa()}, on {pool_size()} threads of our own"
    return library.grouped_experts, f"torch operators: compiled kernels {extension.why_not}"


_OPS = ("rms_norm", "rotary", "write_kv", "paged_attention", "grouped_experts")
