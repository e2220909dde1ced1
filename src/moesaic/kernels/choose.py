"""Which implementation serves each op on a device, and why. The only place where that is decided."""

from __future__ import annotations

from typing import Literal

import torch

from moesaic.kernels import cpu, library, reference
from moesaic.kernels.api import Kernels, RmsNorm


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
    return Kernels(
        rms_norm=rms_norm,
        rotary=library.rotary,
        write_kv=library.write_kv,
        paged_attention=library.paged_attention,
        grouped_experts=library.grouped_experts,
        why=dict.fromkeys(_OPS, "torch operators") | {"rms_norm": norm_why},
    )


def _rms_norm(device: torch.device) -> tuple[RmsNorm, str]:
    if device.type != "cpu":
        return library.rms_norm, "torch operators: two launches cost the host less than one of Triton"
    extension = cpu.load()
    if extension.loaded:
        return cpu.rms_norm, "compiled for the CPU"
    return library.rms_norm, f"torch operators: compiled kernels {extension.why_not}"


_OPS = ("rms_norm", "rotary", "write_kv", "paged_attention", "grouped_experts")
