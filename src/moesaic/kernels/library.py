"""The fast implementations of this version by torch operators, for CPU and CUDA; one file per larger op."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from moesaic.kernels.api import ExpertShape, PagedKV
from moesaic.kernels.attention import attention_workspace_bytes, paged_attention
from moesaic.kernels.experts import experts_workspace_bytes, grouped_experts
from moesaic.kernels.kv_formats import quantize_kv

__all__ = [
    "attention_workspace_bytes",
    "experts_workspace_bytes",
    "grouped_experts",
    "paged_attention",
    "rms_norm",
    "rotary",
    "workspace_bytes",
    "write_kv",
]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See api.RmsNorm. torch normalizes in float32 and casts; the weight is applied after it, in x's dtype."""
    return F.rms_norm(x, x.shape[-1:], None, eps).mul_(weight)


def rotary(x_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """See api.Rotary. Computed in the wider of x's and the tables' types: three launches, and one to cast back."""
    half = x_TND.shape[-1] // 2
    rotated_TND = x_TND * cos_TD.unsqueeze(1)
    sin_TD = sin_TD.unsqueeze(1)
    rotated_TND[..., :half].addcmul_(x_TND[..., half:], sin_TD[..., :half], value=-1)
    rotated_TND[..., half:].addcmul_(x_TND[..., :half], sin_TD[..., half:])
    return rotated_TND.to(x_TND.dtype)


def write_kv(key_TGD: Tensor, value_TGD: Tensor, kv: PagedKV, slot_T: Tensor) -> None:
    """See api.WriteKV."""
    for cache, scales, new_TGD in ((kv.keys, kv.key_scales, key_TGD), (kv.values, kv.value_scales, value_TGD)):
        if scales is None:
            rows_TGD = new_TGD.to(cache.dtype)
        else:
            rows_TGD, scales_TG = quantize_kv(new_TGD, kv.format)
            scales.view(-1, scales.shape[2]).index_copy_(0, slot_T, scales_TG)
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_T, rows_TGD)


def workspace_bytes(shape: ExpertShape, num_rows: int) -> int:
    """experts_workspace_bytes: an upper bound of one grouped_experts call's temporaries, in bytes."""
    return experts_workspace_bytes(shape, num_rows)
