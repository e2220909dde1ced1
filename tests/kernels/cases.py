"""Inputs for kernel tests: experts cut into pages, ragged sequences in shuffled blocks, and what a result is held to.

Everything that an op must not read is NaN: unused page slots, page padding, unused cache entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from moesaic.kernels import formats
from moesaic.kernels.api import (
    ABSENT,
    FORMAT_DTYPES,
    Activation,
    ExpertPages,
    ExpertRows,
    ExpertShape,
    PagedKV,
    Ragged,
    SlotTable,
    WeightFormat,
)
from moesaic.kernels.layout import QUANTIZED, Page
from tests.thresholds import KERNEL_NMSE

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")],
    ),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
DTYPE_IDS = ["fp32", "bf16", "fp16"]
QUANTIZED_NAMES = [name for name in QUANTIZED if name != "int4"]  # which is int4-64
FORMATS: dict[torch.dtype, WeightFormat] = {dtype: name for name, dtype in FORMAT_DTYPES.items()}


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Within the bar of `dtype`, finite, and of one shape."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    error = (actual.double().cpu() - expected.double().cpu()).square().sum()
    norm = expected.double().cpu().square().sum()
    return bool(error <= KERNEL_NMSE[dtype] * norm)  # False for NaN


@dataclass
class Experts:
    """Dense weights [E, I, H], [E, I, H], [E, H, I] in storage format (on the CPU; dequantized to float32 where pages
    are quantized), and the same as pages."""

    gate: Tensor
    up: Tensor
    down: Tensor
    pages: ExpertPages


def make_experts(
    num_experts: int,
    shape: ExpertShape,
    device: str = "cpu",
    seed: int = 0,
    order: str = "runs",
    padding_bytes: int = 64,
    absent: Sequence[int] = (),
) -> Experts:
    """`order`: "runs" gives every expert consecutive slots (experts themselves shuffled), "scattered" shuffles
    single pages. `absent` experts get no slot. There are always spare slots full of NaN."""
    generator = torch.Generator().manual_seed(seed)
    dtype = FORMAT_DTYPES.get(shape.format, torch.float32)
    size = (num_experts, shape.intermediate, shape.hidden)
    gate, up = ((torch.randn(size, generator=generator) * shape.hidden**-0.5 * 2).to(dtype) for _ in range(2))
    down = (torch.randn(num_experts, shape.hidden, shape.intermediate, generator=generator) * 0.2).to(dtype)
    page_bytes = Page(shape.stored, shape.hidden, shape.page_units).num_bytes + padding_bytes
    num_slots = (num_experts + 2) * shape.num_pages
    # NaN in every float format, and in scales of every kind
    slab_SB = torch.full((num_slots, page_bytes), 0xFF, dtype=torch.uint8)
    if order == "runs":
        firsts = torch.randperm(num_experts + 2, generator=generator)[:num_experts] * shape.num_pages
        slots_EP = firsts[:, None] + torch.arange(shape.num_pages)
    else:
        slots_EP = torch.randperm(num_slots, generator=generator)[: num_experts * shape.num_pages]
        slots_EP = slots_EP.view(num_experts, shape.num_pages)
    for e in range(num_experts):
        for p in range(shape.num_pages):
            units = slice(p * shape.page_units, (p + 1) * shape.page_units)
            blocks = gate[e, units], up[e, units], down[e, :, units]
            page_B = torch.full((page_bytes,), 0xFF, dtype=torch.uint8)
            for block, stored in zip(blocks, _write_page(page_B, shape, blocks), strict=True):
                block.copy_(stored)
            if e not in absent:
                slab_SB[slots_EP[e, p]] = page_B
    for e in absent:
        slots_EP[e] = ABSENT
    table = SlotTable(slots_EP.to(device, torch.int32), slots_EP.tolist())
    return Experts(gate, up, down, ExpertPages(slab_SB.to(device), table, shape))


def _write_page(page_B: Tensor, shape: ExpertShape, blocks: Sequence[Tensor]) -> list[Tensor]:
    """Writes gate, up and down into a page; returns what they are once stored."""
    page = Page(shape.stored, shape.hidden, shape.page_units)
    places = ((0, page.gate), (page.up_offset, page.gate), (page.down_offset, page.down))
    stored = []
    for (offset, layout), block in zip(places, blocks, strict=True):
        if not shape.stored.quantized:
            flat_B = block.contiguous().view(torch.uint8).flatten()
            page_B[offset : offset + flat_B.numel()] = flat_B
            stored.append(block)
            continue
        parts = formats.quantize(block, shape.stored)
        formats.store(page_B.unsqueeze(0), offset, layout, 0, [part.unsqueeze(0) for part in parts])
        stored.append(formats.dequantize(parts, layout))
    return stored


def quantized_shape(
    name: str, hidden: int = 96, intermediate: int = 128, page_units: int = 64, activation: Activation = "silu"
) -> ExpertShape:
    form = QUANTIZED[name]
    return ExpertShape(hidden, intermediate, page_units, form.name, activation, form.group, form.zero_points)


def make_rows(counts: Sequence[int], num_tokens: int, device: str = "cpu", seed: int = 0) -> ExpertRows:
    """Expert e gets counts[e] distinct tokens, in ascending order as a stable sort by expert leaves them."""
    generator = torch.Generator().manual_seed(seed)
    chosen = [torch.randperm(num_tokens, generator=generator)[:n].sort().values for n in counts]
    token_M = torch.cat([*chosen, torch.empty(0, dtype=torch.int64)])
    starts = [0]
    for n in counts:
        starts.append(starts[-1] + n)
    weight_M = torch.rand(len(token_M), generator=generator) + 0.1
    start_E1 = torch.tensor(starts, dtype=torch.int32, device=device)
    return ExpertRows(token_M.to(device), weight_M.to(device), start_E1, starts)


def dense_experts(x_TH: Tensor, rows: ExpertRows, experts: Experts, activation: Activation) -> Tensor:
    """The formula in float64, from the dense weights: knows nothing of pages."""
    act = {"silu": torch.nn.SiLU(), "gelu": torch.nn.GELU(), "relu": torch.nn.ReLU()}[activation]
    x, out = x_TH.double().cpu(), torch.zeros(x_TH.shape, dtype=torch.float64)
    assert rows.starts is not None
    for e in range(len(rows.starts) - 1):
        token = rows.token_M[rows.starts[e] : rows.starts[e + 1]].cpu()
        weight = rows.weight_M[rows.starts[e] : rows.starts[e + 1]].double().cpu()
        gate, up, down = experts.gate[e].double(), experts.up[e].double(), experts.down[e].double()
        hidden = act(x[token] @ gate.T) * (x[token] @ up.T)
        out.index_add_(0, token, hidden @ down.T * weight[:, None])
    return out


@dataclass
class Sequences:
    """A step's queries and the cache they look at, and the same keys and values dense, one [L, G, D] per sequence."""

    query_TND: Tensor
    kv: PagedKV
    ragged: Ragged
    keys: list[Tensor]
    values: list[Tensor]


def make_sequences(
    lengths: Sequence[tuple[int, int]],
    heads: tuple[int, int, int] = (4, 2, 16),
    block_tokens: int = 4,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    lengths_on_device: bool = True,
) -> Sequences:
    """`lengths`: (queries, context) of each sequence. Blocks are shuffled; what is not a sequence's is NaN.
    `heads`: query heads, key/value heads, head dimension."""
    num_heads, num_kv_heads, head_dim = heads
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-context // block_tokens) for _, context in lengths]
    num_blocks = sum(needed) + 3
    free = torch.randperm(num_blocks, generator=generator).tolist()
    size = (num_blocks, block_tokens, num_kv_heads, head_dim)
    keys_cache, values_cache = (torch.full(size, float("nan"), dtype=dtype) for _ in range(2))
    table_RW = torch.full((len(lengths), max([*needed, 0]) + 1), num_blocks + 7, dtype=torch.int64)
    keys, values, starts = [], [], [0]
    for r, (queries, context) in enumerate(lengths):
        blocks = [free.pop() for _ in range(needed[r])]
        table_RW[r, : needed[r]] = torch.tensor(blocks, dtype=torch.int64)
        for cache, dense in ((keys_cache, keys), (values_cache, values)):
            tokens = torch.randn(context, num_kv_heads, head_dim, generator=generator).to(dtype)
            dense.append(tokens)
            for t in range(context):
                cache[blocks[t // block_tokens], t % block_tokens] = tokens[t]
        starts.append(starts[-1] + queries)
    query_TND = torch.randn(starts[-1], num_heads, head_dim, generator=generator).to(dtype)
    contexts = [context for _, context in lengths]
    context_len_R = torch.tensor(contexts, dtype=torch.int64, device=device) if lengths_on_device else None
    ragged = Ragged(starts, contexts, table_RW.to(device), context_len_R)
    kv = PagedKV(keys_cache.to(device), values_cache.to(device))
    return Sequences(query_TND.to(device), kv, ragged, keys, values)


def dense_attention(sequences: Sequences, scale: float, window: int | None) -> Tensor:
    """The formula in float64 with an explicit mask over the whole context: knows nothing of blocks."""
    out = []
    for r, (keys, values) in enumerate(zip(sequences.keys, sequences.values, strict=True)):
        start, stop = sequences.ragged.query_starts[r : r + 2]
        query = sequences.query_TND[start:stop].double().cpu()
        group = query.shape[1] // keys.shape[1]
        k, v = (x.double().repeat_interleave(group, dim=1) for x in (keys, values))
        scores = torch.einsum("qnd,lnd->nql", query, k) * scale
        i = torch.arange(len(keys) - len(query), len(keys))[:, None]
        j = torch.arange(len(keys))[None, :]
        hidden = (j > i) if window is None else (j > i) | (j <= i - window)
        mixed = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        out.append(torch.einsum("nql,lnd->qnd", mixed, v))
    return torch.cat([*out, torch.empty(0, *sequences.query_TND.shape[1:], dtype=torch.float64)])
