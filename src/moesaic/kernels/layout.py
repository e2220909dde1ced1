"""How a page's bytes are laid out, format by format: whole numbers only, no torch, so that deciders may use it too.

A page is three blocks: gate rows [P, H], up rows [P, H], down columns [H, P]. A block of a float format is its
elements, row-major, and the next block follows at once. A block of a quantized format is up to three parts, each
starting at a multiple of 64 bytes from the page's start:

    codes    row-major; one byte an element, or two elements a byte with the lower element in the low nibble (a row
             of odd length ends in half a byte)
    scales   int8: float32, one a row. int4: float16, one a group of a row. fp8: float32, one a tile of 128 x 128,
             row-major. mxfp4: one byte a group of 32 of a row, the power of two 2^(byte - 127) (E8M0)
    zeros    int4 with zero points: four bits a group, packed as codes are

Groups run along the input axis (H in gate and up, P in down) and tiles start at the block's first element; the last
one of a row or column may be cut short. An element is scale * (code - zero): int8 codes are signed and have no zero,
int4 codes are 0 to 15 with zero 8 where none is stored, fp8 codes are E4M3 without infinities, mxfp4 codes are E2M1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FormatName = Literal["fp32", "bf16", "fp16", "int8", "int4", "fp8", "mxfp4"]

ALIGN_BYTES = 64  # a cache line, and the widest vector load
FP8_TILE = 128
MXFP4_GROUP = 32
INT4_GROUPS = (32, 64, 128)

FLOAT_BYTES: dict[FormatName, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class ExpertFormat:
    """How an expert's weights are stored. `group`, `zero_points`: of int4 only."""

    name: FormatName
    group: int = 0
    zero_points: bool = False

    def __post_init__(self) -> None:
        if self.name == "int4":
            assert self.group in INT4_GROUPS, self
        else:
            assert self.group == 0, self
            assert not self.zero_points, self

    def __str__(self) -> str:
        if self.name != "int4":
            return self.name
        return f"int4-{self.group}" + ("-zp" if self.zero_points else "")

    @property
    def quantized(self) -> bool:
        return self.name not in FLOAT_BYTES

    def row_bytes(self, columns: int) -> int:
        """Of a row's elements or codes."""
        if not self.quantized:
            return columns * FLOAT_BYTES[self.name]
        return columns if self.name in ("int8", "fp8") else -(-columns // 2)

    def row_groups(self, columns: int) -> int:
        """Scales that a row has, or that it shares with the other rows of its tile."""
        width = {"int4": self.group, "fp8": FP8_TILE, "mxfp4": MXFP4_GROUP}.get(self.name, columns)
        return -(-columns // width)


# What `--expert-format` may say beside "auto".
QUANTIZED: dict[str, ExpertFormat] = {
    "int8": ExpertFormat("int8"),
    "int4": ExpertFormat("int4", 64),
    **{str(f): f for group in INT4_GROUPS for zp in (False, True) for f in [ExpertFormat("int4", group, zp)]},
    "fp8": ExpertFormat("fp8"),
    "mxfp4": ExpertFormat("mxfp4"),
}


@dataclass(frozen=True, slots=True)
class Part:
    """A matrix of bytes within a block: `rows` rows of `row_bytes` each, `offset` bytes from the block's start. One
    of its rows serves `block_rows` rows of the block."""

    offset: int
    rows: int
    row_bytes: int
    block_rows: int = 1

    @property
    def end(self) -> int:
        return self.offset + self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Block:
    """One of a page's three blocks: `rows` x `columns` elements in at most three parts."""

    format: ExpertFormat
    rows: int
    columns: int

    @property
    def codes(self) -> Part:
        return Part(0, self.rows, self.format.row_bytes(self.columns))

    @property
    def scales(self) -> Part:
        """Of a quantized format."""
        assert self.format.quantized, self.format
        start, groups = align(self.codes.end), self.format.row_groups(self.columns)
        if self.format.name == "fp8":
            return Part(start, -(-self.rows // FP8_TILE), 4 * groups, FP8_TILE)
        return Part(start, self.rows, groups * {"int8": 4, "int4": 2, "mxfp4": 1}[self.format.name])

    @property
    def zeros(self) -> Part | None:
        if not self.format.zero_points:
            return None
        return Part(align(self.scales.end), self.rows, -(-self.format.row_groups(self.columns) // 2))

    @property
    def parts(self) -> tuple[Part, ...]:
        """In the order of their offsets."""
        if not self.format.quantized:
            return (self.codes,)
        return (self.codes, self.scales) if self.zeros is None else (self.codes, self.scales, self.zeros)

    @property
    def num_bytes(self) -> int:
        """To where the next block may start."""
        end = self.parts[-1].end
        return align(end) if self.format.quantized else end


@dataclass(frozen=True, slots=True)
class Page:
    """A page of `units` intermediate units of an expert with `hidden` inputs and outputs."""

    format: ExpertFormat
    hidden: int
    units: int

    @property
    def gate(self) -> Block:
        """Also the layout of up."""
        return Block(self.format, self.units, self.hidden)

    @property
    def down(self) -> Block:
        return Block(self.format, self.hidden, self.units)

    @property
    def up_offset(self) -> int:
        return self.gate.num_bytes

    @property
    def down_offset(self) -> int:
        return 2 * self.gate.num_bytes

    @property
    def num_bytes(self) -> int:
        return align(self.down_offset + self.down.num_bytes)


def align(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES
