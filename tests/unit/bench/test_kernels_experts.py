"""The rows of grouped experts in the CPU kernel bench."""

from __future__ import annotations

import pytest
import torch

from moesaic.bench.kernels_experts import FORMATS, Geometry, experts_rows
from moesaic.kernels import library
from moesaic.kernels.api import Done

SMALL = Geometry("small", 64, 256, 2)


def test_every_format_and_row_count_gets_a_row_and_its_share_is_of_the_given_bandwidth():
    flat_B = torch.empty(1 << 20, dtype=torch.uint8)
    rows = list(experts_rows(library.grouped_experts, flat_B, 2e9, geometries=(SMALL,), row_counts=(1, 3), rounds=1))
    assert [(row.format, row.rows) for row in rows] == [(str(form), n) for form in FORMATS for n in (1, 3)]
    for row in rows:
        assert row.share == pytest.approx(row.bytes_s / 2e9)
        assert (row.torch_s_ratio is None) == (row.format not in ("bf16", "fp16", "fp32"))


def test_a_round_goes_through_as_many_experts_as_there_is_room_for():
    seen = []

    def op(x_TH, rows, pages, out_TH, page_range=None):
        seen.append(tuple(slots[0] for slots in pages.table.page_slots))
        assert rows.starts == [0, 3, 6]
        assert pages.slab_SB.shape[1] == 3 * 128 * 64 * 2
        return Done()

    # four calls of two experts of two pages
    flat_B = torch.empty(4 * 2 * 2 * 3 * 128 * 64 * 2 + 100, dtype=torch.uint8)
    list(experts_rows(op, flat_B, 1.0, FORMATS[:1], (SMALL,), (3,), rounds=1))
    assert seen == 2 * [(0, 2), (4, 6), (8, 10), (12, 14)]
