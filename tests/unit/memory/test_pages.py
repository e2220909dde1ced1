"""The cut of an expert: widths as the rules say, blocks within a page, nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.kernels.layout import QUANTIZED, ExpertFormat, Page
from moesaic.memory.pages import PageLayout


@pytest.mark.parametrize(
    ("intermediate", "units"),
    [
        (14336, 128), (768, 128), (128, 128), (192, 96), (320, 80), (6400, 128), (1408, 128), (48, 48),
        (200, 100), (12, 12), (10, 10), (97, 97), (7, 7), (254, 127), (131, 131), (2 * 131, 262), (16 * 131, 16),
    ],
)  # fmt: skip
def test_page_width_follows_the_rules(intermediate, units):
    assert PageLayout.cut(64, intermediate, 2).page_units == units


@given(st.integers(1, 300), st.integers(1, 3000), st.sampled_from([2, 4]))
def test_pages_tile_the_expert_and_blocks_tile_the_page(hidden, intermediate, itemsize):
    layout = PageLayout.cut(hidden, intermediate, itemsize)
    assert layout.num_pages * layout.page_units == intermediate
    assert (layout.gate_offset, layout.up_offset) == (0, layout.block_bytes)
    assert layout.down_offset == 2 * layout.block_bytes
    assert 3 * layout.block_bytes <= layout.page_bytes < 3 * layout.block_bytes + 64
    assert layout.page_bytes % 64 == 0
    assert layout.expert_bytes == layout.num_pages * layout.page_bytes
    assert layout.page_units <= 128 or layout.num_pages == 1


def test_published_experts_waste_nothing():
    assert PageLayout.cut(4096, 14336, 2).expert_bytes == 352_321_536
    assert PageLayout.cut(2048, 768, 2).expert_bytes == 9_437_184


@given(st.integers(1, 300), st.integers(1, 600), st.sampled_from(list(QUANTIZED)))
def test_quantized_pages_are_those_of_the_kernels(hidden, intermediate, name):
    layout = PageLayout.cut(hidden, intermediate, 2, QUANTIZED[name])
    page = Page(QUANTIZED[name], hidden, layout.page_units)
    assert layout.page == page
    assert (layout.page_bytes, layout.up_offset, layout.down_offset) == (
        page.num_bytes, page.up_offset, page.down_offset,
    )  # fmt: skip
    assert layout.page_units == PageLayout.cut(hidden, intermediate, 2).page_units
    assert layout.page_bytes % 64 == layout.down_offset % 64 == layout.up_offset % 64 == 0


def test_quantized_experts_are_as_small_as_promised():
    bf16 = PageLayout.cut(4096, 14336, 2).expert_bytes
    shares = {name: PageLayout.cut(4096, 14336, 2, f).expert_bytes / bf16 for name, f in QUANTIZED.items()}
    assert shares["int4"] == shares["int4-64"] == shares["mxfp4"] == pytest.approx(4.25 / 16)
    assert shares["int8"] == pytest.approx(0.5, abs=0.006)
    assert shares["fp8"] == pytest.approx(0.5, abs=0.001)


def test_a_layout_of_floats_has_no_parts_and_a_float_format_is_no_quantization():
    assert PageLayout.cut(64, 64, 2).page is None
    with pytest.raises(AssertionError):
        PageLayout.cut(64, 64, 2, ExpertFormat("bf16"))


def test_a_cut_that_does_not_divide_is_our_fault():
    with pytest.raises(AssertionError):
        PageLayout(64, 100, 2, 48)
