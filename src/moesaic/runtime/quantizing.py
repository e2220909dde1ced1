"""Experts quantized while they load: rows of floats go in, codes, scales and zero points lie in the pages.

On the reading threads, a few rows at a time, so that torch spreads no operator over other cores and scratch is small.
Suffixes: H hidden, N pages of an expert, P page units, R rows of a block, B bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

import torch
from torch import Tensor

from moesaic.kernels import formats
from moesaic.kernels.layout import FP8_TILE, Block, Page
from moesaic.memory.pages import PageLayout
from moesaic.runtime.pieces import SERIAL_ELEMENTS, Piece, Reader


class QuantizationErrors:
    """What quantizing changed, by layer: the root of the squared differences over that of the squared weights."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float]] = {}
        self._lock = Lock()

    def add(self, layer: int, difference: Tensor, weights: Tensor) -> None:
        """Float32 tensors of one shape."""
        error, norm = (float(t.flatten().dot(t.flatten())) for t in (difference, weights))
        with self._lock:
            before = self._sums.get(layer, (0.0, 0.0))
            self._sums[layer] = (before[0] + error, before[1] + norm)

    def by_layer(self) -> dict[int, float]:
        """0 where every weight of a layer is zero."""
        return {i: (error / norm) ** 0.5 if norm else 0.0 for i, (error, norm) in sorted(self._sums.items())}


class QuantizedPages:
    """An arena's slab, and how a tensor's rows get into it quantized. The twin of loader.Pages, of which it is used in
    the place: `fill` has the same sense."""

    def __init__(self, slab_SB: Tensor, layout: PageLayout) -> None:
        page = layout.page
        assert page is not None, "the layout is one of floats"
        self.slab_SB, self.layout, self.page = slab_SB, layout, page
        self.errors = QuantizationErrors()

    @property
    def down_rows(self) -> int:
        """Rows of down that must come together."""
        return FP8_TILE if self.page.format.name == "fp8" else 1

    def fill(self, piece: Piece, reader: Reader) -> None:
        """Puts the rows of `piece` where they belong; it starts at a page (gate, up) or a multiple of `down_rows`."""
        if piece.spec.part == "down":
            for start, stop, block in reader.blocks(piece, self.down_rows):
                self._put_down(piece, start, block.view(stop - start, self.layout.num_pages, -1))
            return
        offset = {"gate": 0, "up": self.page.up_offset}[piece.spec.part]
        units = self.layout.page_units
        for start, _, block in reader.blocks(piece, units):
            for number, rows_PH in enumerate(block.view(-1, units, self.layout.hidden), start // units):
                page_1B = self._slots(piece.first_slot + number, 1)
                for first, rows_RH in chunks(rows_PH, self.page):
                    self._put(piece, page_1B, offset, first, rows_RH.unsqueeze(0))

    def _put_down(self, piece: Piece, start: int, rows_RNP: Tensor) -> None:
        num_rows = rows_RNP.shape[0]
        pages = max(1, SERIAL_ELEMENTS // (min(self.down_rows, num_rows) * self.layout.page_units))
        rows = max(self.down_rows, SERIAL_ELEMENTS // (self.layout.num_pages * self.layout.page_units))
        for first in range(0, num_rows, rows):
            for page in range(0, self.layout.num_pages, pages):
                rows_NRP = rows_RNP[first : first + rows, page : page + pages].transpose(0, 1)
                slots_NB = self._slots(piece.first_slot + page, rows_NRP.shape[0])
                self._put(piece, slots_NB, self.page.down_offset, start + first, rows_NRP)

    def _put(self, piece: Piece, pages_NB: Tensor, offset: int, start: int, rows_NRC: Tensor) -> None:
        exact = rows_NRC.to(torch.float32, memory_format=torch.contiguous_format)
        parts = formats.quantize(exact, self.page.format)
        block = self.page.down if piece.spec.part == "down" else self.page.gate
        formats.store(pages_NB, offset, block, start, parts)
        assert piece.spec.expert is not None
        stored = formats.dequantize(parts, Block(self.page.format, *exact.shape[1:]))
        self.errors.add(piece.spec.expert.layer, stored.sub_(exact), exact)

    def _slots(self, first: int, count: int) -> Tensor:
        return self.slab_SB[first : first + count]


def chunks(rows_RC: Tensor, page: Page) -> Iterator[tuple[int, Tensor]]:
    """(first row, rows) in runs that may be quantized alone and are as short as torch's serial operators want them."""
    step = FP8_TILE if page.format.name == "fp8" else max(1, SERIAL_ELEMENTS // rows_RC.shape[1])
    for start in range(0, rows_RC.shape[0], step):
        yield start, rows_RC[start : start + step]
