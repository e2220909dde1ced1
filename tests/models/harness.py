"""A whole-model run without the runtime: weights read by safetensors, every expert resident, blocks shuffled."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from moesaic.core.model import ModelSpec
from moesaic.kernels.api import (
    FORMAT_DTYPES,
    ExpertPages,
    ExpertRows,
    ExpertShape,
    Kernels,
    PagedKV,
    Ragged,
    Routing,
    SlotTable,
)
from moesaic.kernels.choose import kernels
from moesaic.memory.pages import PageLayout
from moesaic.models import build
from moesaic.models.base import Decoder, StepBatch
from moesaic.specs import read_spec, tensor_specs

FORMATS = {dtype: name for name, dtype in FORMAT_DTYPES.items()}


@dataclass
class Run:
    """A StepRun that computes every expert at once; `ops` collects the spans' names."""

    experts_by_layer: dict[int, ExpertPages]
    kernels: Kernels
    ops: list[str] = field(default_factory=list)

    @contextmanager
    def op(self, name: str) -> Iterator[None]:
        self.ops.append(name)
        yield

    def experts(self, layer: int, x_TH: Tensor, routing: Routing) -> Tensor:
        self.ops.append(f"L{layer}.experts")
        out_TH = torch.zeros(x_TH.shape, dtype=torch.float32, device=x_TH.device)
        pages = self.experts_by_layer[layer]
        rows = rows_of(routing, len(pages.table.page_slots))
        self.kernels.grouped_experts(x_TH, rows, pages, out_TH).wait()
        return out_TH


def rows_of(routing: Routing, num_experts: int) -> ExpertRows:
    ids_M = routing.topk_ids_TK.flatten()
    order_M = torch.sort(ids_M, stable=True).indices
    counts = torch.bincount(ids_M, minlength=num_experts)
    start_E1 = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    token_M = order_M // routing.topk_ids_TK.shape[1]
    return ExpertRows(token_M, routing.topk_weights_TK.flatten()[order_M], start_E1.int(), start_E1.tolist())


@dataclass
class Model:
    """A checkpoint ready to run. `forward` takes the new tokens of several sequences and gives each one's logits."""

    spec: ModelSpec
    decoder: Decoder
    run: Run
    kv: list[PagedKV]
    block_tokens: int
    device: torch.device
    free_blocks: list[int]
    tables: dict[int, list[int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    @torch.inference_mode()
    def forward(self, chunks: Sequence[tuple[int, Sequence[int]]]) -> list[Tensor]:
        """`chunks`: (sequence, its next tokens). float32 logits [tokens, vocab] of each, on the CPU."""
        ids, positions, slots, starts = [], [], [], [0]
        for sequence, tokens in chunks:
            table, length = self.tables.setdefault(sequence, []), self.lengths.get(sequence, 0)
            for position in range(length, length + len(tokens)):
                if position == len(table) * self.block_tokens:
                    table.append(self.free_blocks.pop())
                slots.append(table[-1] * self.block_tokens + position % self.block_tokens)
                positions.append(position)
            self.lengths[sequence] = length + len(tokens)
            ids += tokens
            starts.append(len(ids))
        tables = [self.tables[sequence] for sequence, _ in chunks]
        width = max(map(len, tables), default=0) + 1
        table_RW = self._tensor([t + [10**6] * (width - len(t)) for t in tables]).view(-1, width)
        contexts = [self.lengths[sequence] for sequence, _ in chunks]
        ragged = Ragged(starts, contexts, table_RW, self._tensor(contexts))
        batch = StepBatch(self._tensor(ids), self._tensor(positions), self._tensor(slots), ragged, self.kv)
        logits = self.decoder.logits(self.decoder.forward(batch, self.run)).cpu()
        assert logits.dtype == torch.float32
        return [logits[a:b] for a, b in itertools.pairwise(starts)]

    def _tensor(self, values: Sequence) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def solo(self, tokens: Sequence[int], chunk: int) -> Tensor:
        """Logits of one new sequence fed in chunks."""
        sequence = len(self.tables)
        parts = [self.forward([(sequence, tokens[i : i + chunk])])[0] for i in range(0, len(tokens), chunk)]
        return torch.cat(parts)


def read_weights(directory: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        weights |= load_file(file)
    return weights


def open_model(
    directory: Path,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    prefer: Literal["auto", "reference"] = "auto",
    block_tokens: int = 4,
    num_blocks: int = 200,
) -> Model:
    spec = read_spec(json.loads((directory / "config.json").read_text()))
    stored = read_weights(directory)
    dense: dict[str, Tensor] = {}
    parts: dict[tuple[int, int], dict[str, Tensor]] = {}
    for tensor in tensor_specs(spec):
        value = stored[tensor.name].to(device, dtype)
        assert value.shape == tensor.shape, tensor.name
        if tensor.expert is None:
            dense[tensor.part] = value
        else:
            parts.setdefault(tuple(tensor.expert), {})[tensor.part] = value
    pages = {layer: _pages(spec, layer, parts, dtype, device) for layer in spec.moe_layers}
    chosen = kernels(torch.device(device), dtype, prefer)
    size = (num_blocks, block_tokens, spec.attention.num_kv_heads, spec.attention.head_dim)
    kv = [PagedKV(*(torch.full(size, float("nan"), dtype=dtype, device=device) for _ in range(2))) for _ in spec.layers]
    shuffled = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    decoder = build(spec, dense, chosen)
    return Model(spec, decoder, Run(pages, chosen), kv, block_tokens, torch.device(device), shuffled)


def _pages(spec, layer, parts, dtype, device) -> ExpertPages:
    """The experts of one layer in one slab, last expert first, page padding NaN."""
    moe = spec.moe(layer)
    layout = PageLayout.cut(spec.hidden, moe.intermediate, dtype.itemsize)
    num_slots = moe.num_experts * layout.num_pages
    slab_SB = torch.full((num_slots, layout.page_bytes // dtype.itemsize), float("nan"), dtype=dtype, device=device)
    page_slots = []
    for e in range(moe.num_experts):
        weights, first = parts[layer, e], (moe.num_experts - 1 - e) * layout.num_pages
        page_slots.append(list(range(first, first + layout.num_pages)))
        for p in range(layout.num_pages):
            units = slice(p * layout.page_units, (p + 1) * layout.page_units)
            blocks = weights["gate"][units], weights["up"][units], weights["down"][:, units]
            page = torch.cat([block.flatten() for block in blocks])
            slab_SB[first + p, : len(page)] = page
    shape = ExpertShape(spec.hidden, moe.intermediate, layout.page_units, FORMATS[dtype], moe.activation)
    return ExpertPages(slab_SB.view(torch.uint8), SlotTable(None, page_slots), shape)
