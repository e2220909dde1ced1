"""Quantized rows of the key/value cache: one float32 scale for each token and kv head, symmetric, to the nearest code.

int8: codes -127..127, int8 [..., D]. int4: codes -7..7 as code + 8, uint8 [..., ceil(D / 2)], the even element in the
low nibble; behind an odd row's last element stands code 0. A row is codes * scale; a row of zeros has scale 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moesaic.kernels.api import KVFormat, PagedKV, Ragged

_LARGEST = {"int8": 127, "int4": 7}


def kv_row_dim(head_dim: int, format: KVFormat) -> int:
    """Elements of a stored row of `head_dim` elements."""
    return (head_dim + 1) // 2 if format == "int4" else head_dim


def quantize_kv(rows: Tensor, format: KVFormat) -> tuple[Tensor, Tensor]:
    """Codes and scales [...] of float rows [..., D]; `format` is int8 or int4."""
    wide = rows.to(torch.float32)
    scales = wide.abs().amax(-1) / _LARGEST[format]
    divisors = torch.where(scales > 0, scales, 1.0).unsqueeze(-1)
    codes = torch.round(wide / divisors).clamp_(-_LARGEST[format], _LARGEST[format])
    if format == "int8":
        return codes.to(torch.int8), scales
    nibbles = torch.nn.functional.pad(codes + 8, (0, rows.shape[-1] % 2), value=8).to(torch.uint8)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), scales


def dequantize_kv(codes: Tensor, scales: Tensor, head_dim: int) -> Tensor:
    """float32 rows [..., head_dim] of int8 or int4 codes and their scales."""
    if codes.dtype == torch.uint8:
        codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)[..., :head_dim].to(torch.int8) - 8
    return codes.to(torch.float32) * scales.unsqueeze(-1)


def dequantized_cache(kv: PagedKV, ragged: Ragged, like: Tensor) -> tuple[PagedKV, Ragged]:
    """The step's blocks of a quantized cache as a cache of `like`'s dtype (its last axis is the head dimension), and
    the sequences that look at it. Costs the whole context in that dtype."""
    assert kv.key_scales is not None, "a quantized cache has scales"
    assert kv.value_scales is not None, "a quantized cache has scales"
    block_tokens, device = kv.keys.shape[1], kv.keys.device
    counts = [-(-context // block_tokens) for context in ragged.context_lens]
    blocks_M = torch.cat([ragged.block_table_RW[r, :count] for r, count in enumerate(counts)])
    keys, values = (
        dequantize_kv(codes.index_select(0, blocks_M), scales.index_select(0, blocks_M), like.shape[-1]).to(like.dtype)
        for codes, scales in ((kv.keys, kv.key_scales), (kv.values, kv.value_scales))
    )
    first_R1 = torch.tensor([sum(counts[:r]) for r in range(len(counts))], device=device).unsqueeze(1)
    table_RW = first_R1 + torch.arange(max(counts), device=device)
    dense = Ragged(ragged.query_starts, ragged.context_lens, table_RW, ragged.context_len_R)
    return PagedKV(keys, values), dense
