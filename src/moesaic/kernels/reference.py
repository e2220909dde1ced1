"""The slow twin of every op in api.py: plain loops in float32 (float64 where x is float64), nothing rounded on the way.

Tests hold the fast implementations against these; `prefer="reference"` runs a whole model on them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from moesaic.kernels import formats
from moesaic.kernels.api import (
    ABSENT,
    FORMAT_DTYPES,
    Activation,
    Done,
    ExpertPages,
    ExpertRows,
    ExpertShape,
    Handle,
    PagedKV,
    PagedLatent,
    Ragged,
)
from moesaic.kernels.kv_formats import dequantize_kv, quantize_kv
from moesaic.kernels.layout import Page

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x * 0.5 * (1.0 + torch.erf(x * 0.5**0.5)),
    "relu": lambda x: torch.clamp_min(x, 0.0),
}


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See api.RmsNorm."""
    wide = x.to(_wide(x))
    normalized = wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return normalized.to(x.dtype) * weight


def rotary(x_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """See api.Rotary."""
    wide = x_TND.to(_wide(x_TND))
    first, second = wide.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    cos, sin = cos_TD.to(wide.dtype).unsqueeze(1), sin_TD.to(wide.dtype).unsqueeze(1)
    return (wide * cos + rotated * sin).to(x_TND.dtype)


def write_kv(key_TGD: Tensor, value_TGD: Tensor, kv: PagedKV, slot_T: Tensor) -> None:
    """See api.WriteKV."""
    block_tokens = kv.keys.shape[1]
    for rows, scales, new_TGD in ((kv.keys, kv.key_scales, key_TGD), (kv.values, kv.value_scales, value_TGD)):
        for token, slot in enumerate(slot_T.tolist()):
            at = (slot // block_tokens, slot % block_tokens)
            if scales is None:
                rows[at] = new_TGD[token]
            else:
                rows[at], scales[at] = quantize_kv(new_TGD[token], kv.format)


def paged_attention(
    query_TND: Tensor,
    kv: PagedKV,
    ragged: Ragged,
    scale: float,
    sliding_window: int | None = None,
    sinks_N: Tensor | None = None,
) -> Tensor:
    """See api.PagedAttention: one query and one head at a time."""
    out_TND = torch.empty_like(query_TND)
    dtype, head_dim = _wide(query_TND), query_TND.shape[2]
    group = query_TND.shape[1] // kv.keys.shape[2]
    block_tokens = kv.keys.shape[1]

    def read(rows: Tensor, scales: Tensor | None, where: list[tuple[int, int]]) -> Tensor:
        found_LGD = torch.stack([rows[at] for at in where])
        if scales is not None:
            found_LGD = dequantize_kv(found_LGD, torch.stack([scales[at] for at in where]), head_dim)
        return found_LGD.to(dtype)

    for r, context in enumerate(ragged.context_lens):
        blocks = ragged.block_table_RW[r].tolist()
        start, stop = ragged.query_starts[r], ragged.query_starts[r + 1]
        for token in range(start, stop):
            last = context - (stop - token)
            first = 0 if sliding_window is None else max(0, last - sliding_window + 1)
            where = [(blocks[j // block_tokens], j % block_tokens) for j in range(first, last + 1)]
            keys_LGD, values_LGD = read(kv.keys, kv.key_scales, where), read(kv.values, kv.value_scales, where)
            for head in range(query_TND.shape[1]):
                scores_L = keys_LGD[:, head // group] @ query_TND[token, head].to(dtype) * scale
                if sinks_N is not None:
                    scores_L = torch.cat((scores_L, sinks_N[head : head + 1].to(dtype)))
                weights_L = torch.softmax(scores_L, dim=0)[: len(where)]
                out_TND[token, head] = (weights_L @ values_LGD[:, head // group]).to(out_TND.dtype)
    return out_TND


def latent_attention(
    query_latent_TNC: Tensor, query_rope_TNP: Tensor, latent: PagedLatent, ragged: Ragged, scale: float
) -> Tensor:
    """See api.LatentAttention: one query and one head at a time."""
    out_TNC = torch.empty_like(query_latent_TNC)
    dtype, rank = _wide(query_latent_TNC), query_latent_TNC.shape[2]
    block_tokens = latent.tokens.shape[1]
    for r, context in enumerate(ragged.context_lens):
        blocks = ragged.block_table_RW[r].tolist()
        start, stop = ragged.query_starts[r], ragged.query_starts[r + 1]
        for token in range(start, stop):
            seen = range(context - (stop - token) + 1)
            rows_LJ = torch.stack([latent.tokens[blocks[j // block_tokens], j % block_tokens] for j in seen]).to(dtype)
            for head in range(query_latent_TNC.shape[1]):
                from_latent_L = rows_LJ[:, :rank] @ query_latent_TNC[token, head].to(dtype)
                from_rope_L = rows_LJ[:, rank:] @ query_rope_TNP[token, head].to(dtype)
                weights_L = torch.softmax((from_latent_L + from_rope_L) * scale, dim=0)
                out_TNC[token, head] = (weights_L @ rows_LJ[:, :rank]).to(out_TNC.dtype)
    return out_TNC


def grouped_experts(
    x_TH: Tensor,
    rows: ExpertRows,
    experts: ExpertPages,
    out_TH: Tensor,
    page_range: tuple[int, int] | None = None,
) -> Handle:
    """See api.GroupedExperts: page by page. Needs the host side of `rows` and of the table."""
    starts, page_slots = rows.starts, experts.table.page_slots
    assert starts is not None, "the reference is driven from the host: rows.starts"
    assert page_slots is not None, "the reference is driven from the host: table.page_slots"
    start, stop = page_range if page_range is not None else (0, experts.shape.num_pages)
    for expert in range(len(starts) - 1):
        owned = slice(starts[expert], starts[expert + 1])
        token_m, weight_m = rows.token_M[owned], rows.weight_M[owned]
        pages = page_slots[expert][start:stop]
        if token_m.numel() == 0 or all(slot == ABSENT for slot in pages):
            continue
        x_mH = x_TH[token_m].to(_wide(x_TH))
        y_mH = torch.zeros_like(x_mH)
        for slot in pages:
            assert slot != ABSENT, f"expert {expert} is present in part"
            gate_PH, up_PH, down_HP = unpack_page(experts.slab_SB[slot], experts.shape, x_mH.dtype)
            hidden_mP = ACTIVATIONS[experts.shape.activation](x_mH @ gate_PH.T) * (x_mH @ up_PH.T)
            y_mH += hidden_mP @ down_HP.T
        for token, row_H in zip(token_m.tolist(), y_mH * weight_m.to(y_mH.dtype).unsqueeze(1), strict=True):
            out_TH[token] += row_H
    return Done()


def unpack_page(page_B: Tensor, shape: ExpertShape, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The gate rows [P, H], up rows [P, H] and down columns [H, P] of one page, as new tensors of `dtype`. Quantized
    weights are dequantized in float32 first."""
    hidden, units = shape.hidden, shape.page_units
    if shape.stored.quantized:
        gate_NPH, up_NPH, down_NHP = formats.unpack(page_B.unsqueeze(0), Page(shape.stored, hidden, units))
        return gate_NPH[0].to(dtype), up_NPH[0].to(dtype), down_NHP[0].to(dtype)
    block = units * hidden * FORMAT_DTYPES[shape.format].itemsize
    gate, up, down = (
        page_B[i * block : (i + 1) * block].clone().view(FORMAT_DTYPES[shape.format]).to(dtype) for i in range(3)
    )
    return gate.view(units, hidden), up.view(units, hidden), down.view(hidden, units)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
