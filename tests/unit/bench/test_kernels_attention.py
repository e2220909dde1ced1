"""The rows of attention in the CPU kernel bench."""

from __future__ import annotations

import pytest

from moesaic.bench.kernels_attention import FORMATS, attention_rows
from moesaic.kernels import cpu

EXTENSION = cpu.load()


@pytest.mark.skipif(not EXTENSION.loaded, reason=EXTENSION.why_not)
def test_every_format_gets_a_row_and_its_share_is_of_the_given_bandwidth():
    rows = attention_rows(2e9, num_sequences=2, context_tokens=40, total_bytes=1, rounds=1)
    assert [row.format for row in rows] == list(FORMATS)
    for row in rows:
        assert row.share == pytest.approx(row.bytes_s / 2e9)
        assert row.torch_bytes_s > 0
        assert "2 x 40 tokens" in row.shape
