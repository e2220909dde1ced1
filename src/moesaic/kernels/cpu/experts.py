"""Grouped experts by the compiled CPU kernels, asynchronously on their own threads.

Rounding: products and sums are float32, x is taken as it is. act(gate) * up stays float32, but for the instruction
sets that multiply pairs of bf16 (avx512_bf16 and amx, more than a few rows): there it is rounded to bf16 once, as
the storage format would. The result does not depend on the number of threads.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import torch
from torch import Tensor

from moesaic.kernels.api import ABSENT, Activation, Done, ExpertPages, ExpertRows, Handle
from moesaic.kernels.cpu.pool import PoolHandle
from moesaic.kernels.layout import INT4_GROUPS, ExpertFormat

# As csrc/cpu/isa.h numbers them.
ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
# As csrc/cpu/quant.h numbers them.
FORMATS: dict[ExpertFormat, int] = {
    ExpertFormat("fp32"): 0,
    ExpertFormat("bf16"): 1,
    ExpertFormat("fp16"): 2,
    ExpertFormat("int8"): 3,
    **{ExpertFormat("int4", group): 4 + i for i, group in enumerate(INT4_GROUPS)},
    **{ExpertFormat("int4", group, True): 7 + i for i, group in enumerate(INT4_GROUPS)},
    ExpertFormat("fp8"): 10,
    ExpertFormat("mxfp4"): 11,
}
ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu": 1, "relu": 2}


def best_isa() -> str:
    """The highest of ISAS that this processor and its system run."""
    return ISAS[int(torch.ops.moesaic.best_isa())]


@dataclass(frozen=True, slots=True)
class CpuExperts:
    """kernels.api.GroupedExperts. `max_isa`: use no instruction set above it, None: the best there is; `num_threads` up
    to the pool's size, 0: all."""

    max_isa: str | None = None
    num_threads: int = 0

    def __call__(
        self,
        x_TH: Tensor,
        rows: ExpertRows,
        experts: ExpertPages,
        out_TH: Tensor,
        page_range: tuple[int, int] | None = None,
    ) -> Handle:
        """See api.GroupedExperts. Needs the host sides of `rows` and of the table. Returns at once; the arguments'
        tensors are held until the handle is waited for."""
        starts, page_slots, shape = rows.starts, experts.table.page_slots, experts.shape
        assert starts is not None, "CPU kernels are driven from the host: rows.starts"
        assert page_slots is not None, "CPU kernels are driven from the host: table.page_slots"
        start, stop = page_range if page_range is not None else (0, shape.num_pages)
        spans, slots = array("q"), array("q")
        for expert in range(len(starts) - 1):
            begin, end = starts[expert], starts[expert + 1]
            if begin == end:
                continue
            pages = page_slots[expert][start:stop]
            num_absent = pages.count(ABSENT)
            if num_absent == len(pages):
                continue
            assert num_absent == 0, f"expert {expert} is present in part"
            spans.extend((begin, end))
            slots.extend(pages)
        if not spans:
            return Done()
        ticket = torch.ops.moesaic.grouped_experts(
            x_TH.contiguous(),
            rows.token_M,
            rows.weight_M,
            torch.frombuffer(spans, dtype=torch.int64).view(-1, 2),
            torch.frombuffer(slots, dtype=torch.int64).view(-1, stop - start),
            experts.slab_SB,
            out_TH,
            shape.page_units,
            FORMATS[shape.stored],
            ACTIVATIONS[shape.activation],
            -1 if self.max_isa is None else ISAS.index(self.max_isa),
            self.num_threads,
        )
        return PoolHandle(ticket)
