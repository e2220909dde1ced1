"""Decode attention on the CPU for `moesaic bench kernels-cpu`: bytes of cache read per second, ours and torch's.

Several caches in turn, larger together than a processor's caches, so that every byte comes from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from moesaic.kernels import library
from moesaic.kernels.api import KV_DTYPES, KVFormat, PagedAttention, PagedKV, Ragged
from moesaic.kernels.cpu.attention import CpuAttention
from moesaic.kernels.kv_formats import kv_row_dim

BLOCK_TOKENS = 16
HEADS = (32, 8, 128)  # query heads, key/value heads, head dimension
FORMATS: tuple[KVFormat, ...] = ("bf16", "fp16", "fp32", "int8", "int4")


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One measured row. `share`: of `read_bytes_s`; `torch_bytes_s`: torch's operators on the same cache."""

    op: str
    format: KVFormat
    shape: str
    bytes_s: float
    torch_bytes_s: float
    share: float


def attention_rows(
    read_bytes_s: float,
    num_sequences: int = 8,
    context_tokens: int = 1024,
    total_bytes: int = 1 << 30,
    rounds: int = 5,
    formats: tuple[KVFormat, ...] = FORMATS,
) -> list[AttentionRow]:
    """One query for each of `num_sequences` sequences, in every format; the best of `rounds`. `read_bytes_s`: the plain
    read bandwidth of the same run; `total_bytes`: of the caches that are gone through. Needs cpu.load()."""
    rows = []
    for format in formats:
        num_heads, num_kv_heads, head_dim = HEADS
        num_blocks = num_sequences * -(-context_tokens // BLOCK_TOKENS)
        kv_bytes = _bytes(_cache(format, 1)) * num_blocks
        caches = [_cache(format, num_blocks) for _ in range(max(1, total_bytes // kv_bytes))]
        generator = torch.Generator().manual_seed(0)
        table_RW = torch.randperm(num_blocks, generator=generator).view(num_sequences, -1)
        contexts = [context_tokens] * num_sequences
        ragged = Ragged(list(range(num_sequences + 1)), contexts, table_RW, torch.tensor(contexts))
        dtype = torch.bfloat16 if format in ("int8", "int4") else caches[0].keys.dtype
        query_TND = torch.randn(num_sequences, num_heads, head_dim, generator=generator).to(dtype)
        ours_s, torch_s = (
            _best_s(partial(_go_through, op, query_TND, caches, ragged), rounds)
            for op in (CpuAttention(), library.paged_attention)
        )
        read = kv_bytes * len(caches)
        shape = f"{num_sequences} x {context_tokens} tokens, {num_heads}/{num_kv_heads} heads of {head_dim}"
        rows.append(
            AttentionRow("attention", format, shape, read / ours_s, read / torch_s, read / ours_s / read_bytes_s)
        )
    return rows


def _cache(format: KVFormat, num_blocks: int) -> PagedKV:
    _, num_kv_heads, head_dim = HEADS
    dtype = next(dtype for dtype, name in KV_DTYPES.items() if name == format)
    size = (num_blocks, BLOCK_TOKENS, num_kv_heads)
    keys, values = (torch.full((*size, kv_row_dim(head_dim, format)), i + 1).to(dtype) for i in range(2))
    if dtype.is_floating_point:
        return PagedKV(keys, values)
    return PagedKV(keys, values, torch.full(size, 0.01), torch.full(size, 0.01))


def _bytes(kv: PagedKV) -> int:
    return sum(part.nbytes for part in (kv.keys, kv.values, kv.key_scales, kv.value_scales) if part is not None)


def _go_through(op: PagedAttention, query_TND: Tensor, caches: list[PagedKV], ragged: Ragged) -> None:
    for kv in caches:
        op(query_TND, kv, ragged, query_TND.shape[2] ** -0.5)


def _best_s(run: Callable[[], None], rounds: int) -> float:
    run()
    times = []
    for _ in range(rounds):
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return min(times)
