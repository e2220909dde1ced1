"""Quantized formats: bytes as layout.py says, exact dequantization, the error that each format must keep to."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.kernels import formats
from moesaic.kernels.layout import ALIGN_BYTES, QUANTIZED, Block, ExpertFormat, Page
from tests.kernels.cases import QUANTIZED_NAMES

SHAPES = [(1, 1), (5, 7), (33, 97), (128, 256), (130, 300), (96, 64)]
GROUP = {"int4-32": 32, "int4-64": 64, "int4-128": 128, "mxfp4": 32}
# relative RMS error on Gaussian weights: what the step of the format allows, and a margin
GAUSSIAN = {"int8": 0.009, "fp8": 0.028, "mxfp4": 0.118, "int4-32": 0.09, "int4-64": 0.1, "int4-128": 0.11,
            "int4-32-zp": 0.085, "int4-64-zp": 0.095, "int4-128-zp": 0.105}  # fmt: skip


def weights(rows, columns, seed=0, scale=0.02):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * scale


def round_trip(x, name):
    form = QUANTIZED[name]
    return formats.dequantize(formats.quantize(x, form), Block(form, *x.shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_parts_have_the_bytes_of_the_layout(name, shape):
    block = Block(QUANTIZED[name], *shape)
    parts = formats.quantize(weights(*shape), block.format)
    assert [(p.dtype, *p.shape) for p in parts] == [(torch.uint8, p.rows, p.row_bytes) for p in block.parts]


@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_parts_start_at_cache_lines_and_never_overlap(name):
    for rows, columns in SHAPES:
        page = Page(QUANTIZED[name], columns, rows)
        spans = []
        for offset, block in ((0, page.gate), (page.up_offset, page.gate), (page.down_offset, page.down)):
            spans += [(offset + part.offset, offset + part.end) for part in block.parts]
        assert all(start % ALIGN_BYTES == 0 for start, _ in spans)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert spans[-1][1] <= page.num_bytes < spans[-1][1] + ALIGN_BYTES


def test_published_expert_sizes_are_what_the_formats_promise():
    bits = {name: 8 * Page(QUANTIZED[name], 4096, 128).num_bytes / (3 * 4096 * 128) for name in QUANTIZED}
    assert bits["int4-32"] == pytest.approx(4.5)
    assert bits["int4-64"] == bits["int4"] == pytest.approx(4.25)
    assert bits["int4-128-zp"] == pytest.approx(
        4 + 1 / 8 + 1 / 32, abs=0.02
    )  # one nibble a byte where a row has one group
    assert bits["mxfp4"] == pytest.approx(4.25)
    assert bits["fp8"] == pytest.approx(8, abs=0.01)
    assert bits["int8"] == pytest.approx(8.1, abs=0.1)


@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_gaussian_weights_keep_the_error_of_the_format(name):
    x = weights(128, 512)
    error = (round_trip(x, name) - x).norm() / x.norm()
    assert GAUSSIAN[name] * 0.6 < error < GAUSSIAN[name]


@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_what_is_representable_comes_back_exactly(name):
    """Quantizing what dequantizing gave changes nothing more than the scale's own rounding allows."""
    once = round_trip(weights(130, 300), name)
    twice = round_trip(once, name)
    # an int4 range may lose its end code, and then shrinks: those elements move by less than a step
    close = torch.isclose(once, twice, rtol=2e-3, atol=1e-7)
    assert close.float().mean() > (0.85 if name.startswith("int4") else 0.9999)


@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_zeros_stay_zeros_and_the_largest_is_kept(name):
    x = weights(128, 256)
    x[:, 128:] = 0
    x[64:, :] = 0
    x[3, 5] = 7.0
    back = round_trip(x, name)
    assert not back[64:].any()
    assert not back[:64, 128:].any()
    assert back[3, 5] == pytest.approx(7.0, rel={"mxfp4": 0.15, "int4": 0.04}.get(QUANTIZED[name].name, 1e-3))
    assert not round_trip(torch.zeros(3, 40), name).any()


@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_tiny_and_huge_weights_stay_finite(name):
    x = weights(128, 256)
    for scale in (1e-40, 1e-30, 1e-6, 1e6, 1e30):
        assert round_trip(x * scale, name).isfinite().all(), scale


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 150),
    name=st.sampled_from(QUANTIZED_NAMES),
    exponent=st.integers(-12, 3),
    seed=st.integers(0, 2**31),
)
def test_no_element_is_further_off_than_its_step_allows(rows, columns, name, exponent, seed):
    x = weights(rows, columns, seed, 10.0**exponent)
    form = QUANTIZED[name]
    back = round_trip(x, name)
    width = form.group or {"int8": columns, "fp8": 128, "mxfp4": 32}[name]
    for start in range(0, columns, width):
        part, got = x[:, start : start + width], back[:, start : start + width]
        top = part.abs().max() if name == "fp8" else part.abs().amax(1, keepdim=True)
        # float16 scales below their smallest normal number lose bits, and so does what they stand for
        lost = 16 * 2.0**-25 if name.startswith("int4") else 0.0
        bar = {"int8": top / 254, "fp8": torch.maximum(part.abs() / 16, top / 448 * 2**-10), "mxfp4": top / 4 * 1.001}
        assert ((got - part).abs() <= bar.get(name, top / (7.5 if form.zero_points else 8)) * 1.01 + lost + 1e-38).all()


def test_int4_codes_are_offset_binary_and_low_nibble_first():
    x = torch.tensor([[-8.0, 7.0, 0.0, 1.0, 3.0]])
    codes, scales = formats.quantize(x, ExpertFormat("int4", 32))
    assert codes.tolist() == [[0x0 | 0xF << 4, 0x8 | 0x9 << 4, 0xB]]
    assert scales.view(torch.float16).tolist() == [[1.0]]
    mirrored, scales = formats.quantize(-x, ExpertFormat("int4", 32))
    assert mirrored.tolist() == codes.tolist()
    assert scales.view(torch.float16).tolist() == [[-1.0]]


def test_int4_zero_points_spread_the_range_over_all_codes():
    x = torch.tensor([[0.0, 15.0, 5.0, -0.0] * 8 + [-5.0, 10.0] * 4])
    codes, scales, zeros = formats.quantize(x, ExpertFormat("int4", 32, True))
    assert scales.view(torch.float16).tolist() == [[1.0, 1.0]]
    assert zeros.tolist() == [[0 | 5 << 4]]
    assert codes[0, :2].tolist() == [0 | 15 << 4, 5]
    assert codes[0, 16].item() == 0 | 15 << 4


def test_mxfp4_rounds_ties_to_the_even_code():
    values = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, -0.25, -1.1, -6.9]
    codes, scales = formats.quantize(torch.tensor([values]), ExpertFormat("mxfp4"))
    back = formats.dequantize((codes, scales), Block(ExpertFormat("mxfp4"), 1, len(values)))
    assert scales.tolist() == [[127]]
    assert back.tolist() == [[0, 1, 1, 2, 2, 4, 4, 6, 0, -1, -6]]
    assert math.copysign(1, back[0, 8].item()) == -1


def test_every_scale_byte_of_mxfp4_is_its_power_of_two():
    scales = torch.arange(255, dtype=torch.uint8).view(-1, 1)
    codes = torch.full((255, 1), 0x12, dtype=torch.uint8)  # 1.0 and 0.5
    back = formats.dequantize((codes, scales), Block(ExpertFormat("mxfp4"), 255, 2))
    assert back[:, 0].tolist() == [2.0 ** (byte - 127) for byte in range(255)]


def test_mxfp4_equals_transformers_dequantizer():
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    generator = torch.Generator().manual_seed(5)
    blocks = torch.randint(0, 256, (2, 12, 6, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(100, 140, (2, 12, 6), dtype=torch.uint8, generator=generator)
    expected = mxfp4.convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32)
    actual = formats.dequantize((blocks.flatten(2), scales), Block(ExpertFormat("mxfp4"), 12, 192))
    assert torch.equal(actual, expected.transpose(1, 2))


def test_fp8_equals_transformers_dequantizer():
    fp8 = pytest.importorskip("transformers.integrations.finegrained_fp8")
    dequantizer = getattr(fp8, "Fp8Dequantize", None)
    if dequantizer is None:
        pytest.skip("this version of transformers has no Fp8Dequantize")
    codes, scales = formats.quantize(weights(256, 384), ExpertFormat("fp8"))
    quantized = {"weight": codes.view(torch.float8_e4m3fn), "weight_scale_inv": scales.view(torch.float32)}
    (expected,) = dequantizer(None).convert(quantized).values()
    expected = expected[0] if isinstance(expected, list) else expected  # transformers before 5.24 gives a list
    assert torch.equal(formats.dequantize((codes, scales), Block(ExpertFormat("fp8"), 256, 384)), expected)


@pytest.mark.parametrize("name", QUANTIZED_NAMES)
def test_rows_quantized_in_runs_are_the_same_bytes(name):
    """What the loader relies on: rows come as they are read, for fp8 by whole tiles."""
    block = Block(QUANTIZED[name], 300, 200)
    x = weights(300, 200)
    whole, parts = torch.zeros(2, 2, 64 + block.num_bytes, dtype=torch.uint8)
    formats.store(whole, 64, block, 0, formats.quantize(x.expand(2, -1, -1), block.format))
    for start, stop in ((0, 128), (128, 256), (256, 300)):
        formats.store(parts, 64, block, start, formats.quantize(x[start:stop].expand(2, -1, -1), block.format))
    assert torch.equal(whole, parts)
    assert whole[:, :64].sum() == 0
