"""How an expert is cut into pages: the unit that is copied, split and computed (MoE-Lightning's paged weights).

A page is P intermediate units: gate rows [P, H], up rows [P, H], down columns [H, P], in this order, each block
contiguous and row-major, rounded up to 64 bytes. It is computable alone; partial sums of pages add. In a quantized
format a block is codes, scales and zero points (kernels/layout.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.kernels.layout import ALIGN_BYTES, ExpertFormat, Page

PAGE_UNITS = 128  # wide enough for a matrix unit's tile, small enough to split an expert between places
MIN_UNITS = 8  # narrower pages cost more in strides than they gain in choice


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The cut of every expert of one shape. `intermediate` is a multiple of `page_units`; `itemsize` is that of an
    activation, and of a weight unless `quantized` says how weights are stored."""

    hidden: int
    intermediate: int
    itemsize: int
    page_units: int
    quantized: ExpertFormat | None = None

    def __post_init__(self) -> None:
        assert self.intermediate % self.page_units == 0, self
        assert self.quantized is None or self.quantized.quantized, self

    @classmethod
    def cut(cls, hidden: int, intermediate: int, itemsize: int, quantized: ExpertFormat | None = None) -> PageLayout:
        """Pages of 128 units where that divides; else of the largest divisor up to 128 that is a multiple of 16;
        else of the largest divisor up to 128, or the whole expert where that would be below 8."""
        return cls(hidden, intermediate, itemsize, _page_units(intermediate), quantized)

    @property
    def num_pages(self) -> int:
        return self.intermediate // self.page_units

    @property
    def page(self) -> Page | None:
        """Where the parts of a quantized page are; None for floats."""
        return None if self.quantized is None else Page(self.quantized, self.hidden, self.page_units)

    @property
    def block_bytes(self) -> int:
        """One of a page's three blocks; of a quantized page gate or up."""
        page = self.page
        return self.page_units * self.hidden * self.itemsize if page is None else page.gate.num_bytes

    @property
    def page_bytes(self) -> int:
        page = self.page
        return -(-3 * self.block_bytes // ALIGN_BYTES) * ALIGN_BYTES if page is None else page.num_bytes

    @property
    def expert_bytes(self) -> int:
        return self.num_pages * self.page_bytes

    @property
    def gate_offset(self) -> int:
        return 0

    @property
    def up_offset(self) -> int:
        return self.block_bytes

    @property
    def down_offset(self) -> int:
        return 2 * self.block_bytes


def _page_units(intermediate: int) -> int:
    divisors = [d for d in range(1, min(PAGE_UNITS, intermediate) + 1) if intermediate % d == 0]
    aligned = [d for d in divisors if d % 16 == 0]
    best = max(aligned or divisors)
    return best if best >= MIN_UNITS else intermediate
