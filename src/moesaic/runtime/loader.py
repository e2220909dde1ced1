"""From safetensors files to the tensors that run: experts into host pages, everything else onto the device.

Parallel preads with bounded scratch: never a tensor twice in memory, no mapping of the files. A page's gate and up
rows are contiguous in the file and are read in place; down, [H, I] in the file, passes through scratch in row blocks
and is cut into the pages' columns; other dtypes pass through scratch and are rounded as torch rounds. Where the layout
is quantized, rows are quantized on the way (quantizing.py).

Suffixes: H hidden, N pages of an expert, P page units, R rows of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor

from moesaic.core.errors import UserError
from moesaic.core.model import TensorSpec
from moesaic.core.routing import ExpertId
from moesaic.memory.buffers import DevicePool, HostArena
from moesaic.memory.checkpoint import Checkpoint
from moesaic.memory.pages import PageLayout
from moesaic.runtime.pieces import Piece, Progress, Reader, convert, open_shared, row_ranges, run_pieces, source_dtype
from moesaic.runtime.quantizing import QuantizedPages


def load_experts(
    checkpoint: Checkpoint,
    specs: Sequence[TensorSpec],
    layout: PageLayout,
    dtype: torch.dtype,
    arena: HostArena,
    progress: Progress | None = None,
) -> dict[int, float]:
    """Fills the arena's slots with every expert of `specs`, converted to `dtype` or quantized as the layout says.

    Expert number i, in the order of layer then expert, owns slots [i * num_pages, (i + 1) * num_pages). Returns the
    relative RMS error of each layer's weights where they were quantized, else nothing. UserError names the file that
    cannot be read or has become shorter than its header said.
    """
    first_slots = expert_slots(specs, layout)
    assert arena.page_bytes == layout.page_bytes, "the arena is cut for another layout"
    assert arena.num_slots >= len(first_slots) * layout.num_pages, "the arena is too small"
    quantized = QuantizedPages(arena.slab_SB, layout) if layout.quantized is not None else None
    pages = quantized or Pages(arena.slab_SB, layout, dtype)
    pieces = []
    for spec in specs:
        if spec.expert is not None:
            entry, first = checkpoint.entries[spec.name], first_slots[spec.expert]
            step = pages.down_rows if spec.part == "down" else layout.page_units
            pieces += [Piece(spec, entry, a, b, first) for a, b in row_ranges(entry, step)]
    run_pieces(pieces, lambda piece, reader: pages.fill(piece, reader), progress)
    return quantized.errors.by_layer() if quantized is not None else {}


def load_dense(
    checkpoint: Checkpoint,
    specs: Sequence[TensorSpec],
    dtype: torch.dtype,
    pool: DevicePool,
    progress: Progress | None = None,
) -> dict[str, Tensor]:
    """Every tensor of `specs` that belongs to no expert, on the pool's device as `dtype`, by part name."""
    _check_tied_head(checkpoint, specs)
    dense = [spec for spec in specs if spec.expert is None]
    weights = pool.carve("weights", {spec.part: spec.shape for spec in dense}, dtype)
    pieces = []
    for spec in dense:
        entry = checkpoint.entries[spec.name]
        pieces += [Piece(spec, entry, a, b) for a, b in row_ranges(entry, 1)]

    def fill(piece: Piece, reader: Reader) -> None:
        target = weights[piece.spec.part].view(piece.entry.shape[0], -1)[piece.start : piece.stop].flatten()
        on_host, stored = target.device.type == "cpu", source_dtype(piece.entry)
        if on_host and stored == dtype:
            reader.read_into(piece, [memoryview(target.view(torch.uint8).numpy())])
            return
        width = target.numel() // (piece.stop - piece.start)
        for start, stop, block in reader.blocks(piece):
            place = target[(start - piece.start) * width : (stop - piece.start) * width]
            if on_host:
                convert(block, place)
            elif stored == dtype:
                place.copy_(block)
            else:
                scratch = reader.scratch("converted", block.numel() * dtype.itemsize).view(dtype)
                place.copy_(convert(block, scratch))

    run_pieces(pieces, fill, progress)
    return weights


def expert_slots(specs: Iterable[TensorSpec], layout: PageLayout) -> dict[ExpertId, int]:
    """Each expert's first slot in the arena: ids in ascending order, `num_pages` slots each."""
    experts = sorted({spec.expert for spec in specs if spec.expert is not None})
    return {expert: i * layout.num_pages for i, expert in enumerate(experts)}


class Pages:
    """Typed views of an arena's slab, and how a tensor's rows get into them. Element width is that of `dtype`."""

    down_rows = 1  # rows of down that must come together

    def __init__(self, slab_SB: Tensor, layout: PageLayout, dtype: torch.dtype) -> None:
        assert dtype.itemsize == layout.itemsize, "the layout is cut for another element size"
        self.slab_SB, self.layout, self.dtype = slab_SB, layout, dtype

    def fill(self, piece: Piece, reader: Reader) -> None:
        """Puts the rows of `piece` where they belong."""
        if piece.spec.part == "down":
            for start, stop, block in reader.blocks(piece):
                self.put_down(piece.first_slot, start, stop, self._converted(block, reader))
            return
        offset = {"gate": self.layout.gate_offset, "up": self.layout.up_offset}[piece.spec.part]
        first_page, last_page = piece.start // self.layout.page_units, piece.stop // self.layout.page_units
        rows_NB = self.block(piece.first_slot, offset)[first_page:last_page]
        if source_dtype(piece.entry) == self.dtype:
            reader.read_into(piece, [memoryview(row_B.numpy()) for row_B in rows_NB])
            return
        target = [row_B.view(self.dtype) for row_B in rows_NB]
        units, width = self.layout.page_units, self.layout.hidden
        for start, stop, block in reader.blocks(piece):
            done = start
            while done < stop:  # a block may cross a page's end
                page, row = divmod(done - piece.start, units)
                count = min(stop - done, units - row)
                source = block[(done - start) * width : (done - start + count) * width]
                convert(source, target[page][row * width : (row + count) * width])
                done += count

    def put_down(self, first_slot: int, start: int, stop: int, block: Tensor) -> None:
        """Cuts rows [start, stop) of down, flat and of our dtype, into the columns of an expert's pages."""
        layout = self.layout
        pages_NB = self.block(first_slot, layout.down_offset).numpy()
        word = _word(layout.page_units * layout.itemsize)
        pages_NHP = pages_NB.view(word).reshape(layout.num_pages, layout.hidden, -1)
        rows_RNP = block.view(torch.uint8).numpy().view(word).reshape(stop - start, layout.num_pages, -1)
        np.copyto(pages_NHP[:, start:stop], rows_RNP.transpose(1, 0, 2))

    def block(self, first_slot: int, offset: int) -> Tensor:
        """One of the three blocks of each page of an expert, as bytes [N, block bytes]."""
        slots_NB = self.slab_SB[first_slot : first_slot + self.layout.num_pages]
        return slots_NB[:, offset : offset + self.layout.block_bytes]

    def _converted(self, block: Tensor, reader: Reader) -> Tensor:
        if block.dtype == self.dtype:
            return block
        return convert(block, reader.scratch("converted", block.numel() * self.dtype.itemsize).view(self.dtype))


def _word(num_bytes: int) -> type[np.generic]:
    """The widest element that divides a run of bytes: copies go word by word."""
    return next(w for w in (np.complex128, np.uint64, np.uint32, np.uint16) if num_bytes % np.dtype(w).itemsize == 0)


def _check_tied_head(checkpoint: Checkpoint, specs: Sequence[TensorSpec]) -> None:
    """A tied model whose file also holds a head: the two must be equal, or the config is wrong."""
    head = checkpoint.entries.get("lm_head.weight")
    embedding = next((spec for spec in specs if spec.part == "embed_tokens"), None)
    if head is None or embedding is None or any(spec.part == "lm_head" for spec in specs):
        return
    table = checkpoint.entries[embedding.name]
    same = (head.dtype, head.shape) == (table.dtype, table.shape)
    with ExitStack() as stack:
        files = {path: open_shared(path, stack) for path in {head.path, table.path}}
        one, other = Reader(files), Reader(files)
        for start, stop in row_ranges(table, 1) if same else ():
            pairs = zip(
                one.blocks(Piece(embedding, head, start, stop)),
                other.blocks(Piece(embedding, table, start, stop)),
                strict=True,
            )
            same = same and all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for (*_, a), (*_, b) in pairs)
    if not same:
        raise UserError(
            f"{head.path}: lm_head.weight differs from {embedding.name} though tie_word_embeddings is true",
            "set tie_word_embeddings to false in config.json if the head is meant",
        )
