"""Quantized weights: from floats to the parts of a block (layout.py) and back, by torch operators on any device.

Rules, the same whatever the device and however many rows come at once:
- int8: the largest magnitude of a row becomes 127.
- int4 symmetric: the element of largest magnitude in a group becomes code 0, that is -8 times a scale of its sign, so
  that nothing is cut off; with zero points the group's range, zero included, is spread over the sixteen codes.
- fp8: the largest magnitude of a tile becomes 448.
- mxfp4: the smallest power of two with which the group's largest magnitude is 7 at most, which rounds to 6, the largest
  element (OCP's rule, which lets it be almost 8, has the larger error: 11.4 % against 11.2 % on a Gaussian).
Rounding is to the nearest code, ties to even. A group of zeros gives zeros.

Suffixes: R rows, C columns of a block, G groups of a row, N pages, B bytes of a page. `...` leading axes are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from moesaic.kernels.layout import FP8_TILE, MXFP4_GROUP, Block, ExpertFormat, Page, Part

FP8_MAX = 448.0
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP16_MAX = 65504.0
E8M0_BIAS = 127
SYMMETRIC_ZERO = 8


def quantize(x_RC: Tensor, form: ExpertFormat) -> tuple[Tensor, ...]:
    """Codes, scales and zero points of `x_RC` [..., R, C], each as bytes [..., rows, row bytes] in the order of
    Block.parts. R may be any part of a block's rows; for fp8 it starts at a tile."""
    x_RC = x_RC.float()
    if form.name == "int8":
        return _quantize_int8(x_RC)
    if form.name == "int4":
        return _quantize_int4(x_RC, form)
    if form.name == "fp8":
        return _quantize_fp8(x_RC)
    assert form.name == "mxfp4", form
    return _quantize_mxfp4(x_RC)


def dequantize(parts: Sequence[Tensor], block: Block) -> Tensor:
    """float32 [..., R, C], exact: one rounding of scale * (code - zero). `parts` as quantize gives them."""
    codes, scales = parts[0], parts[1].contiguous()
    form, columns = block.format, block.columns
    if form.name == "int8":
        return codes.view(torch.int8).float().mul_(scales.view(torch.float32))
    if form.name == "fp8":
        values_RC = codes.view(torch.float8_e4m3fn).float()
        scale_RG = scales.view(torch.float32).repeat_interleave(FP8_TILE, -2)[..., : codes.shape[-2], :]
        for group, values in enumerate(values_RC.split(FP8_TILE, -1)):
            values.mul_(scale_RG[..., group : group + 1])
        return values_RC
    codes_RC = _nibbles(codes, columns)
    if form.name == "mxfp4":
        table = torch.tensor([*E2M1, *(-value for value in E2M1)], device=codes.device)
        values_RC, scale_RG = table[codes_RC.int()], scales.view(torch.float8_e8m0fnu).float()
        return _scaled(values_RC, scale_RG, MXFP4_GROUP)
    values_RC, scale_RG = codes_RC.float(), scales.view(torch.float16).float()
    if form.zero_points:
        zero_RG = _nibbles(parts[2], form.row_groups(columns)).float()
        for group, values in enumerate(values_RC.split(form.group, -1)):
            values.sub_(zero_RG[..., group : group + 1])
    else:
        values_RC.sub_(SYMMETRIC_ZERO)
    return _scaled(values_RC, scale_RG, form.group)


def unpack(pages_NB: Tensor, page: Page) -> tuple[Tensor, Tensor, Tensor]:
    """Gate [N, P, H], up [N, P, H] and down [N, H, P] of quantized pages, as new float32 tensors."""
    blocks = ((0, page.gate), (page.up_offset, page.gate), (page.down_offset, page.down))
    gate, up, down = (dequantize(_parts(pages_NB, offset, block), block) for offset, block in blocks)
    return gate, up, down


def store(pages_NB: Tensor, offset: int, block: Block, start: int, parts: Sequence[Tensor]) -> None:
    """Writes quantized rows [N, rows from `start` on, ...] of the block that starts `offset` bytes into each page."""
    for place, part in zip(block.parts, parts, strict=True):
        first = start // place.block_rows
        rows_NRB = part_view(pages_NB, offset, place)[:, first : first + part.shape[-2]]
        rows_NRB.copy_(part)


def part_view(pages_NB: Tensor, offset: int, part: Part) -> Tensor:
    """The part's bytes in each page as a view [N, rows, row bytes]."""
    return pages_NB[:, offset + part.offset : offset + part.end].unflatten(1, (part.rows, part.row_bytes))


def _parts(pages_NB: Tensor, offset: int, block: Block) -> list[Tensor]:
    return [part_view(pages_NB, offset, part) for part in block.parts]


# -- to codes ----------------------------------------------------------------------------------------------------
def _quantize_int8(x_RC: Tensor) -> tuple[Tensor, ...]:
    scale_R1 = x_RC.abs().amax(-1, keepdim=True).div_(127)
    codes_RC = x_RC.mul(_inverse(scale_R1)).round_().clamp_(-127, 127).to(torch.int8)
    return codes_RC.view(torch.uint8), scale_R1.view(torch.uint8)


def _quantize_int4(x_RC: Tensor, form: ExpertFormat) -> tuple[Tensor, ...]:
    x_RGg = _grouped(x_RC, form.group)
    low_RG1, high_RG1 = x_RGg.amin(-1, keepdim=True), x_RGg.amax(-1, keepdim=True)
    if form.zero_points:
        low_RG1.clamp_(max=0)
        scale_RG1 = (high_RG1.clamp_(min=0) - low_RG1).div_(15)
    else:
        scale_RG1 = torch.where(-low_RG1 >= high_RG1, low_RG1, high_RG1).div_(-8)
    half_RG1 = scale_RG1.clamp_(-FP16_MAX, FP16_MAX).half()
    inverse_RG1 = _inverse(half_RG1.float())
    zero_RG1 = torch.full_like(inverse_RG1, SYMMETRIC_ZERO)
    if form.zero_points:
        zero_RG1 = (-low_RG1).mul_(inverse_RG1).round_().clamp_(0, 15)
    codes_RC = x_RGg.mul(inverse_RG1).round_().add_(zero_RG1).clamp_(0, 15).flatten(-2)[..., : x_RC.shape[-1]]
    parts = (_packed(codes_RC.to(torch.uint8)), half_RG1.squeeze(-1).view(torch.uint8))
    return (*parts, _packed(zero_RG1.squeeze(-1).to(torch.uint8))) if form.zero_points else parts


def _quantize_fp8(x_RC: Tensor) -> tuple[Tensor, ...]:
    """Tile by tile: the loader's threads want small operators."""
    codes_RC = torch.empty_like(x_RC, dtype=torch.float8_e4m3fn, memory_format=torch.contiguous_format)
    sizes = [-(-size // FP8_TILE) for size in x_RC.shape[-2:]]
    scale_RG = x_RC.new_empty((*x_RC.shape[:-2], *sizes))
    for row, rows_RC in enumerate(x_RC.split(FP8_TILE, -2)):
        rows = slice(row * FP8_TILE, row * FP8_TILE + rows_RC.shape[-2])
        for group, tile_RC in enumerate(rows_RC.split(FP8_TILE, -1)):
            columns = slice(group * FP8_TILE, group * FP8_TILE + tile_RC.shape[-1])
            scale_11 = tile_RC.abs().amax((-2, -1), keepdim=True).div_(FP8_MAX)
            scale_RG[..., row, group] = scale_11[..., 0, 0]
            codes_RC[..., rows, columns] = (tile_RC * _inverse(scale_11)).clamp_(-FP8_MAX, FP8_MAX)
    return codes_RC.view(torch.uint8), scale_RG.view(torch.uint8)


def _quantize_mxfp4(x_RC: Tensor) -> tuple[Tensor, ...]:
    x_RGg = _grouped(x_RC, MXFP4_GROUP)
    mantissa_RG, exponent_RG = torch.frexp(x_RGg.abs().amax(-1))  # amax = mantissa * 2^exponent, mantissa from 1/2
    power_RG = torch.where(mantissa_RG > 7 / 8, exponent_RG - 2, exponent_RG - 3)
    power_RG = torch.where(mantissa_RG == 0, 0, power_RG).clamp_(-E8M0_BIAS, E8M0_BIAS)
    bytes_RG = (power_RG + E8M0_BIAS).to(torch.uint8)
    x_RGg = x_RGg / bytes_RG.view(torch.float8_e8m0fnu).float().unsqueeze(-1)
    size = x_RGg.abs()
    # codes 0 to 4 are halves, 4 to 6 whole numbers, 6 and 7 even numbers: a concave line through all of them
    codes = torch.minimum(torch.minimum(size * 2, size + 2), size * 0.5 + 4).round_().clamp_(max=7).to(torch.uint8)
    codes |= torch.signbit(x_RGg).to(torch.uint8) << 3
    return _packed(codes.flatten(-2)[..., : x_RC.shape[-1]]), bytes_RG


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale, and 0 where the scale is too small to be one: such values become zeros."""
    inverse = 1 / scale
    return torch.where(inverse.isinf(), 0, inverse)


def _grouped(x_RC: Tensor, group: int) -> Tensor:
    """[..., R, G, group], a group that is cut short filled up with zeros."""
    return F.pad(x_RC, (0, -x_RC.shape[-1] % group)).unflatten(-1, (-1, group))


def _packed(codes_RC: Tensor) -> Tensor:
    """Two codes a byte, the first in the low nibble."""
    if codes_RC.shape[-1] % 2:
        codes_RC = F.pad(codes_RC, (0, 1))
    return codes_RC[..., ::2] | (codes_RC[..., 1::2] << 4)


# -- from codes --------------------------------------------------------------------------------------------------
def _nibbles(bytes_RB: Tensor, count: int) -> Tensor:
    """The first `count` codes of each row, one a byte."""
    return torch.stack((bytes_RB & 15, bytes_RB >> 4), -1).flatten(-2)[..., :count]


def _scaled(values_RC: Tensor, scale_RG: Tensor, group: int) -> Tensor:
    """Multiplies in place."""
    columns = values_RC.shape[-1]
    if columns % group == 0:
        values_RC.unflatten(-1, (-1, group)).mul_(scale_RG.unsqueeze(-1))
        return values_RC
    return values_RC.mul_(scale_RG.repeat_interleave(group, -1)[..., :columns])
