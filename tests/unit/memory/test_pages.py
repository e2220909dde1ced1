"""The cut of an expert: widths as the rules say, blocks within a page, nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_cut_that_does_not_divide_is_our_fault():
    with pytest.raises(AssertionError):
        PageLayout(64, 100, 2, 48)
