"""Random weights straight into memory (`--load-format dummy`): speed and memory without a checkpoint.

The statistics are those of `moesaic make-checkpoint` (models/noise.py), the values are not the same.
Suffixes: H hidden, P page units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod

import numpy as np
import torch
from torch import Tensor

from moesaic.core.model import ModelSpec, TensorSpec
from moesaic.kernels import formats
from moesaic.kernels.layout import Block, Page
from moesaic.memory.buffers import DevicePool, HostArena
from moesaic.memory.pages import PageLayout
from moesaic.models.noise import Bits, Kind, NoiseShape, draw_cuts, kind_of, noise_blocks, router_rows
from moesaic.runtime.pieces import convert, num_threads
from moesaic.runtime.quantizing import QuantizationErrors

BLOCK_ELEMENTS = (1 << 22) + 4099  # at most, per block: 80 MB of bfloat16 in all
STEP_ELEMENTS = 1 << 22
QUANTIZED_ELEMENTS = 1 << 24  # of the blocks that are quantized once, for gate and up and for down
MAX_QUANTIZED = 64


def dummy_experts(
    spec: ModelSpec, layout: PageLayout, dtype: torch.dtype, arena: HostArena, seed: int
) -> dict[int, float]:
    """Fills every page of every expert, numbered as load_experts numbers them, with noise of `seed`.

    In a quantized layout each block is one of a few dozen that were quantized once: same statistics, and many
    more combinations than pages. Returns the relative RMS error of each layer's weights then, else nothing."""
    num_slots = spec.num_experts * layout.num_pages
    assert arena.num_slots >= num_slots, "the arena is too small"
    assert arena.page_bytes == layout.page_bytes, "the arena is cut for another layout"
    length = layout.page_units * layout.hidden
    shape = _noise_shape(spec, seed, max(length, min(BLOCK_ELEMENTS, 3 * num_slots * length)))
    blocks = {kind: [_as_dtype(b, dtype) for b in bits] for kind, bits in noise_blocks(shape).items()}
    rng = np.random.default_rng([seed, 1])
    starts_S3 = rng.integers(shape.block_elements, size=(num_slots, 3))
    picks_S3 = rng.integers(1 << 16, size=(num_slots, 3))
    parts: tuple[Kind, ...] = ("noise", "noise", "resid")  # gate, up, down
    page = layout.page
    if page is not None:
        return _quantized_experts(spec, page, {kind: blocks[kind] for kind in parts}, arena, rng)

    def fill(slot: int) -> None:
        page = arena.slab_SB[slot, : 3 * layout.block_bytes].view(dtype)
        for i, kind in enumerate(parts):
            block, start = blocks[kind][picks_S3[slot, i] % len(blocks[kind])], int(starts_S3[slot, i])
            _copy(block[start : start + length], page[i * length : (i + 1) * length])

    with ThreadPoolExecutor(num_threads(), thread_name_prefix="dummy") as executor:
        for _ in executor.map(fill, range(num_slots), chunksize=64):
            pass
    return {}


def _quantized_experts(
    spec: ModelSpec, page: Page, noise: Mapping[Kind, Sequence[Tensor]], arena: HostArena, rng: np.random.Generator
) -> dict[int, float]:
    length, num_slots = page.units * page.hidden, arena.num_slots
    choice = min(MAX_QUANTIZED, max(8, QUANTIZED_ELEMENTS // length))
    errors = QuantizationErrors()

    def quantize(kind: Kind, block: Block) -> Tensor:
        """One block's bytes, out of noise from a random place on."""
        source = noise[kind][int(rng.integers(len(noise[kind])))]
        start = int(rng.integers(source.numel() - length + 1))
        rows_RC = source[start : start + length].float().view(block.rows, block.columns)
        bytes_1B = torch.zeros(1, block.num_bytes, dtype=torch.uint8)
        parts = formats.quantize(rows_RC.unsqueeze(0), page.format)
        formats.store(bytes_1B, 0, block, 0, parts)
        errors.add(0, formats.dequantize(parts, block)[0] - rows_RC, rows_RC)
        return bytes_1B[0]

    gate_up = [quantize("noise", page.gate) for _ in range(choice)]
    down = [quantize("resid", page.down) for _ in range(choice)]
    picks_S3 = rng.integers(choice, size=(num_slots, 3))

    def fill(slot: int) -> None:
        for i, (offset, blocks) in enumerate(((0, gate_up), (page.up_offset, gate_up), (page.down_offset, down))):
            block = blocks[picks_S3[slot, i]]
            _copy(block, arena.slab_SB[slot, offset : offset + block.numel()])

    with ThreadPoolExecutor(num_threads(), thread_name_prefix="dummy") as executor:
        for _ in executor.map(fill, range(num_slots), chunksize=64):
            pass
    return dict.fromkeys(spec.moe_layers, errors.by_layer()[0])


def dummy_dense(
    spec: ModelSpec, specs: Sequence[TensorSpec], dtype: torch.dtype, pool: DevicePool, seed: int
) -> dict[str, Tensor]:
    """Every tensor of `specs` that belongs to no expert, by part name, on the pool's device."""
    shape = _noise_shape(spec, seed, min(BLOCK_ELEMENTS, sum(prod(t.shape) for t in specs if t.expert is None)))
    blocks = noise_blocks(shape)
    rng = np.random.default_rng([seed, 2])
    dense = [tensor for tensor in specs if tensor.expert is None]
    weights = pool.carve("weights", {tensor.part: tensor.shape for tensor in dense}, dtype)
    for tensor in dense:
        weight = weights[tensor.part]
        kind, flat = kind_of(tensor.part), weight.flatten()
        if kind == "ones":
            weight.fill_(1.0)
        elif kind == "router":
            rows = router_rows(shape, int(tensor.part.split(".")[1]), tensor.shape[0])
            weight.copy_(torch.from_numpy(rows).to(dtype))
        else:
            for cut in draw_cuts(blocks, kind, flat.numel(), STEP_ELEMENTS, rng):
                values = _as_dtype(cut.block[cut.start : cut.start + cut.count], dtype)
                flat[cut.target : cut.target + cut.count].copy_(values)
    return weights


def _noise_shape(spec: ModelSpec, seed: int, block_elements: int) -> NoiseShape:
    return NoiseShape(len(spec.layers), spec.hidden, spec.vocab, seed, block_elements=block_elements)


def _as_dtype(bits: Bits, dtype: torch.dtype) -> Tensor:
    values = torch.from_numpy(bits).view(torch.bfloat16)
    return values if dtype == torch.bfloat16 else convert(values, torch.empty(values.shape, dtype=dtype))


def _copy(source: Tensor, target: Tensor) -> None:
    """A plain copy of bytes that lets other Python threads run."""
    np.copyto(target.view(torch.uint8).numpy(), source.view(torch.uint8).numpy())
