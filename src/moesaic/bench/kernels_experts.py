"""Grouped experts on the CPU for `moesaic bench kernels-cpu`: bytes of weights and flops a second, ours and torch's.

Calls go through the experts in turn, larger together than a processor's caches, so that every byte comes from memory.
torch multiplies the same bytes, taken as three dense matrices an expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from moesaic.kernels.api import FORMAT_DTYPES, ExpertPages, ExpertRows, ExpertShape, GroupedExperts, SlotTable
from moesaic.kernels.formats import quantize, store
from moesaic.kernels.layout import QUANTIZED, Block, ExpertFormat, Page

PAGE_UNITS = 128
ROWS = (1, 2, 4, 16, 32, 128, 256)
FORMATS = (
    *(ExpertFormat(name) for name in ("bf16", "fp16", "fp32", "int8")),
    QUANTIZED["int4-64"],
    QUANTIZED["int4-64-zp"],
    *(ExpertFormat(name) for name in ("fp8", "mxfp4")),
)
MAX_FLOPS = 5e10  # of one round: with many rows few experts tell as much, and a small machine comes to an end

MAX_SECONDS = 4.0  # of one row, after which no further round begins


@dataclass(frozen=True, slots=True)
class Geometry:
    """A published model's experts: widths, and how many run in one call at decode."""

    name: str
    hidden: int
    intermediate: int
    top_k: int


GEOMETRIES = (Geometry("mixtral-8x7b", 4096, 14336, 1), Geometry("qwen3-30b-a3b", 2048, 768, 8))


@dataclass(frozen=True, slots=True)
class ExpertsRow:
    """One measured row. `rows`: of each expert of a call; `share`: of the read bandwidth; `torch_s_ratio`: torch's
    time over ours, None where torch has no operator for the format."""

    format: str
    geometry: str
    rows: int
    bytes_s: float
    flops_s: float
    share: float
    torch_s_ratio: float | None


def experts_rows(
    op: GroupedExperts,
    flat_B: Tensor,
    read_bytes_s: float,
    formats: Sequence[ExpertFormat] = FORMATS,
    geometries: Sequence[Geometry] = GEOMETRIES,
    row_counts: Sequence[int] = ROWS,
    rounds: int = 3,
) -> Iterator[ExpertsRow]:
    """The best of `rounds`, in which ours and torch's take turns. `flat_B`: memory for the weights, overwritten."""
    for form in formats:
        for geometry in geometries:
            pages = _fill(flat_B, form, geometry)
            for rows in row_counts:
                yield _measure(op, pages, form, geometry, rows, rounds, read_bytes_s)


def _fill(flat_B: Tensor, form: ExpertFormat, geometry: Geometry) -> Tensor:
    """As many experts as there is room for, in whole calls: a slab whose pages are all one random page."""
    units = min(PAGE_UNITS, geometry.intermediate)
    page = Page(form, geometry.hidden, units)
    expert_pages = geometry.intermediate // units
    num_calls = flat_B.numel() // (page.num_bytes * expert_pages * geometry.top_k)
    assert num_calls > 0, f"{flat_B.numel()} bytes hold no call's experts of {geometry.name}"
    slab_SB = flat_B[: num_calls * geometry.top_k * expert_pages * page.num_bytes].view(-1, page.num_bytes)
    generator = torch.Generator().manual_seed(0)
    one_1B = torch.zeros(1, page.num_bytes, dtype=torch.uint8)
    for offset, block in ((0, page.gate), (page.up_offset, page.gate), (page.down_offset, page.down)):
        _store_random(one_1B, offset, block, generator)
    slab_SB.copy_(one_1B.expand_as(slab_SB))
    return slab_SB


def _store_random(page_1B: Tensor, offset: int, block: Block, generator: torch.Generator) -> None:
    values_RC = torch.randn(block.rows, block.columns, generator=generator) * 0.02
    if block.format.quantized:
        store(page_1B, offset, block, 0, quantize(values_RC, block.format))
    else:
        stored = values_RC.to(FORMAT_DTYPES[block.format.name]).view(torch.uint8)
        page_1B[0, offset : offset + block.num_bytes] = stored.flatten()


def _measure(
    op: GroupedExperts,
    slab_SB: Tensor,
    form: ExpertFormat,
    geometry: Geometry,
    rows: int,
    rounds: int,
    read_bytes_s: float,
) -> ExpertsRow:
    units = min(PAGE_UNITS, geometry.intermediate)
    shape = ExpertShape(
        geometry.hidden, geometry.intermediate, units, form.name, group=form.group, zero_points=form.zero_points
    )
    call_pages = shape.num_pages * geometry.top_k
    call_flops = 6.0 * geometry.hidden * geometry.intermediate * rows * geometry.top_k
    num_calls = max(1, min(slab_SB.shape[0] // call_pages, int(MAX_FLOPS / call_flops)))
    x_TH = torch.randn(rows, geometry.hidden).to(FORMAT_DTYPES.get(form.name, torch.bfloat16))
    ours = partial(_all_ours, op, x_TH, list(_calls(slab_SB, shape, geometry.top_k, rows, num_calls)))
    experts = [] if form.quantized else list(_dense(slab_SB, shape, num_calls * geometry.top_k))
    theirs = partial(_all_torch, x_TH, experts)
    ours_s, torch_s = _in_turns(ours, theirs if experts else None, rounds)
    bytes_s = num_calls * call_pages * slab_SB.shape[1] / ours_s
    return ExpertsRow(
        str(form),
        geometry.name,
        rows,
        bytes_s,
        num_calls * call_flops / ours_s,
        bytes_s / read_bytes_s,
        torch_s / ours_s if experts else None,
    )


def _calls(
    slab_SB: Tensor, shape: ExpertShape, top_k: int, rows: int, num_calls: int
) -> Iterator[tuple[ExpertRows, ExpertPages]]:
    token_M, weight_M = torch.arange(rows).repeat(top_k), torch.full((rows * top_k,), 1 / top_k)
    for call in range(num_calls):
        firsts = [(call * top_k + e) * shape.num_pages for e in range(top_k)]
        table = SlotTable(None, [range(first, first + shape.num_pages) for first in firsts])
        starts = [rows * e for e in range(top_k + 1)]
        yield ExpertRows(token_M, weight_M, None, starts), ExpertPages(slab_SB, table, shape)


def _dense(slab_SB: Tensor, shape: ExpertShape, num_experts: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The pages of each expert as dense gate, up and down."""
    size = shape.hidden * shape.intermediate
    for expert in range(num_experts):
        pages_PB = slab_SB[expert * shape.num_pages : (expert + 1) * shape.num_pages]
        gate, up, down = pages_PB.view(FORMAT_DTYPES[shape.format]).flatten()[: 3 * size].split(size)
        yield gate.view(-1, shape.hidden), up.view(-1, shape.hidden), down.view(shape.hidden, -1)


def _all_ours(op: GroupedExperts, x_TH: Tensor, calls: Sequence[tuple[ExpertRows, ExpertPages]]) -> None:
    out_TH = torch.zeros(x_TH.shape, dtype=torch.float32)
    for rows, pages in calls:
        op(x_TH, rows, pages, out_TH).wait()


def _all_torch(x_TH: Tensor, experts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    for gate, up, down in experts:
        F.linear(F.silu(F.linear(x_TH, gate)).mul_(F.linear(x_TH, up)), down)


def _in_turns(ours: Callable[[], None], theirs: Callable[[], None] | None, rounds: int) -> tuple[float, float]:
    """The best seconds of each. The first round only warms up; slow ones are fewer, but one is always counted."""
    best, started_s = (float("inf"), float("inf")), perf_counter()
    for number in range(rounds + 1):
        times = _seconds(ours), 0.0 if theirs is None else _seconds(theirs)
        if number > 0:
            best = min(best[0], times[0]), min(best[1], times[1])
            if perf_counter() - started_s > MAX_SECONDS:
                break
    return best


def _seconds(run: Callable[[], None]) -> float:
    start_s = perf_counter()
    run()
    return perf_counter() - start_s
