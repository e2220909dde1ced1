"""Grouped experts by torch operators, driven from the host: page groups in batched products on a CUDA device, page by
page on the CPU.

Rounding: the gate and up products and act(gate) * up rest in the storage format (float32 accumulation inside);
the down product accumulates in float32 and stays float32 until it is weighted and added. Quantized pages are
dequantized group by group, on the CPU to float32, on a CUDA device to x's dtype, which stands for the storage format.

Extra shape suffixes: m rows of one expert, n pages of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
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
)
from moesaic.kernels.layout import Page

SCRATCH_BYTES = 48 << 20  # of one page group: what the batched products leave behind
BLOCK_ROWS = 1024  # rows of one expert taken at once; more only repeat the read of its weights
FEW_ROWS = 32  # up to here partial sums per page cost less than gathering the down columns (measured, H200)
FEWER_ROWS_CPU = 2  # up to here a CPU multiplies bf16 and fp16 faster than it widens them (measured, AVX-512)

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu}


def grouped_experts(
    x_TH: Tensor,
    rows: ExpertRows,
    experts: ExpertPages,
    out_TH: Tensor,
    page_range: tuple[int, int] | None = None,
) -> Handle:
    """See api.GroupedExperts. Reads `rows.starts` and `table.page_slots` (the host sides) only; done, or ordered on
    the current stream, when it returns. At most `experts_workspace_bytes` of temporaries live at once."""
    starts, page_slots = rows.starts, experts.table.page_slots
    assert starts is not None, "library kernels are driven from the host: rows.starts"
    assert page_slots is not None, "library kernels are driven from the host: table.page_slots"
    stored = FORMAT_DTYPES.get(experts.shape.format, x_TH.dtype)
    assert x_TH.dtype == stored, f"x is {x_TH.dtype}, pages {experts.shape.format}"
    start, stop = page_range if page_range is not None else (0, experts.shape.num_pages)
    partial_sum = _pages_on_device if x_TH.is_cuda else _pages_on_cpu
    for expert in range(len(starts) - 1):
        if starts[expert] == starts[expert + 1]:
            continue
        pages = page_slots[expert][start:stop]
        if all(slot == ABSENT for slot in pages):
            continue
        runs = tuple(_runs(pages, expert))
        for first in range(starts[expert], starts[expert + 1], BLOCK_ROWS):
            block = slice(first, min(first + BLOCK_ROWS, starts[expert + 1]))
            if x_TH.shape[0] == 1 and block.stop - block.start == 1:
                out_TH.addcmul_(partial_sum(x_TH, experts, runs), rows.weight_M[block].unsqueeze(1))
                continue
            token_m = rows.token_M[block]
            y_mH = partial_sum(x_TH.index_select(0, token_m), experts, runs)
            out_TH.index_add_(0, token_m, y_mH.mul_(rows.weight_M[block].unsqueeze(1)))
    return Done()


def experts_workspace_bytes(shape: ExpertShape, num_rows: int) -> int:
    """An upper bound of the temporaries of one grouped_experts call, in bytes.

    `num_rows`: the most rows that one expert gets. Memory that the allocator rounds up or that cuBLAS keeps
    for itself is not in it.
    """
    rows = min(num_rows, BLOCK_ROWS)
    itemsize = _itemsize(shape)
    # x, the sum, one more of it while two are joined, and (CPU) the widened x; a weight column
    per_row = shape.hidden * (itemsize + 3 * 4) + 4
    page_cpu = shape.page_units * (3 * shape.hidden * 4 + rows * 4 * 4) + _unpack_bytes(shape)
    page = _page_bytes(shape, rows)
    return rows * per_row + max(page, min(SCRATCH_BYTES, shape.num_pages * page), page_cpu)


def _runs(page_slots: Sequence[int], expert: int) -> Iterator[tuple[int, int]]:
    """Runs of consecutive slots as (first slot, number of pages); usually one."""
    first, length = page_slots[0], len(page_slots)
    if first != ABSENT and all(a == b for a, b in zip(page_slots, range(first, first + length), strict=True)):
        yield first, length
        return
    begin = 0
    for i in range(length):
        assert page_slots[i] != ABSENT, f"expert {expert} is present in part"
        if i + 1 == length or page_slots[i + 1] != page_slots[i] + 1:
            yield page_slots[begin], i + 1 - begin
            begin = i + 1


def _weights(experts: ExpertPages, first: int, num_pages: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Gate and up rows [n, 2P, H] and down columns [n, H, P] of consecutive slots: views, nothing copied, in a float
    format; new tensors of `dtype` in a quantized one."""
    shape = experts.shape
    if shape.stored.quantized:
        page = Page(shape.stored, shape.hidden, shape.page_units)
        gate_nPH, up_nPH, down_nHP = formats.unpack(experts.slab_SB[first : first + num_pages], page)
        return torch.cat((gate_nPH, up_nPH), 1).to(dtype), down_nHP.to(dtype)
    block = shape.page_units * shape.hidden
    flat = experts.slab_SB[first : first + num_pages].view(FORMAT_DTYPES[shape.format])
    gate_up_nPH = flat[:, : 2 * block].unflatten(1, (2 * shape.page_units, shape.hidden))
    down_nHP = flat[:, 2 * block : 3 * block].unflatten(1, (shape.hidden, shape.page_units))
    return gate_up_nPH, down_nHP


def _itemsize(shape: ExpertShape) -> int:
    """Bytes of an activation; the widest where the pages do not say."""
    return FORMAT_DTYPES.get(shape.format, torch.float32).itemsize


def _unpack_bytes(shape: ExpertShape) -> int:
    """Scratch that dequantizing one page takes, its result included: gate, up and down in float32, gate and up once
    more side by side and as x's dtype, and what one block's codes take on the way (as int64 indices in a table)."""
    if not shape.stored.quantized:
        return 0
    return shape.page_units * shape.hidden * (3 * 4 + 2 * 4 + 3 * 4 + 16) + (1 << 16)


# -- CUDA ----------------------------------------------------------------------------------------------------
def _page_bytes(shape: ExpertShape, rows: int) -> int:
    """Scratch that one page of a group needs while `rows` rows pass through it."""
    itemsize = _itemsize(shape)
    products = rows * 4 * shape.page_units * itemsize + _unpack_bytes(shape)
    if rows <= FEW_ROWS:
        return products + rows * shape.hidden * 4
    return products + shape.hidden * shape.page_units * itemsize


def _pages_on_device(x_mH: Tensor, experts: ExpertPages, runs: Sequence[tuple[int, int]]) -> Tensor:
    """Sum over the runs' pages, float32 [m, H]."""
    size = max(1, SCRATCH_BYTES // _page_bytes(experts.shape, x_mH.shape[0]))
    group_sum = _few_rows if x_mH.shape[0] <= FEW_ROWS else _many_rows
    y_mH: Tensor | None = None
    for first, length in runs:
        for offset in range(0, length, size):
            y_mH = group_sum(x_mH, experts, first + offset, min(size, length - offset), y_mH)
    assert y_mH is not None
    return y_mH


def _few_rows(x_mH: Tensor, experts: ExpertPages, first: int, num_pages: int, y_mH: Tensor | None) -> Tensor:
    """Adds one group to `y_mH` (None: starts it), by partial sums per page: the weights are read once, in place."""
    gate_up_nPH, down_nHP = _weights(experts, first, num_pages, x_mH.dtype)
    gate_nmP, up_nmP = torch.bmm(x_mH.expand(num_pages, -1, -1), gate_up_nPH.mT).chunk(2, dim=-1)
    hidden_nmP = _ACTIVATIONS[experts.shape.activation](gate_nmP).mul_(up_nmP)
    partial_nmH = _bmm_float32(hidden_nmP, down_nHP.mT)
    sum_mH = partial_nmH[0] if num_pages == 1 else partial_nmH.sum(0)
    return sum_mH if y_mH is None else y_mH.add_(sum_mH)


def _many_rows(x_mH: Tensor, experts: ExpertPages, first: int, num_pages: int, y_mH: Tensor | None) -> Tensor:
    """Adds one group to `y_mH` (None: starts it): down columns side by side in scratch, then one product."""
    gate_up_nPH, down_nHP = _weights(experts, first, num_pages, x_mH.dtype)
    rows, units = x_mH.shape[0], experts.shape.page_units
    gate_nmP, up_nmP = torch.bmm(x_mH.expand(num_pages, -1, -1), gate_up_nPH.mT).chunk(2, dim=-1)
    hidden_mnP = torch.empty(rows, num_pages, units, dtype=x_mH.dtype, device=x_mH.device)
    torch.mul(_ACTIVATIONS[experts.shape.activation](gate_nmP).transpose(0, 1), up_nmP.transpose(0, 1), out=hidden_mnP)
    down_HnP = down_nHP.transpose(0, 1).contiguous()
    sum_mH = _mm_float32(hidden_mnP.flatten(1), down_HnP.flatten(1).t())
    return sum_mH if y_mH is None else y_mH.add_(sum_mH)


def _bmm_float32(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b) if a.dtype == torch.float32 else torch.bmm(a, b, out_dtype=torch.float32)


def _mm_float32(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b) if a.dtype == torch.float32 else torch.mm(a, b, out_dtype=torch.float32)


# -- CPU -----------------------------------------------------------------------------------------------------
def _pages_on_cpu(x_mH: Tensor, experts: ExpertPages, runs: Sequence[tuple[int, int]]) -> Tensor:
    """Sum over the runs' pages, float32 [m, H]. A page is widened to float32 while it lies in the caches: measured
    faster than 16-bit products without hardware for them, and the only way to a float32 sum."""
    activation, quantized = _ACTIVATIONS[experts.shape.activation], experts.shape.stored.quantized
    x32_mH, y_mH = x_mH.float(), torch.zeros(x_mH.shape, dtype=torch.float32)
    narrow = x_mH.dtype != torch.float32 and x_mH.shape[0] <= FEWER_ROWS_CPU and not quantized
    for first, length in runs:
        for gate_up_PH, down_HP in _pages(experts, first, length):
            product_m2P = F.linear(x_mH, gate_up_PH) if narrow else F.linear(x32_mH, gate_up_PH.float())
            gate_mP, up_mP = product_m2P.chunk(2, dim=-1)
            hidden_mP = activation(gate_mP).mul_(up_mP)
            y_mH.addmm_(hidden_mP.float(), down_HP.float().t())
    return y_mH


def _pages(experts: ExpertPages, first: int, num_pages: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Gate and up rows [2P, H] and down columns [H, P] of each page; quantized ones dequantized one at a time."""
    step = 1 if experts.shape.stored.quantized else num_pages
    for slot in range(first, first + num_pages, step):
        yield from zip(*_weights(experts, slot, step, torch.float32), strict=True)
