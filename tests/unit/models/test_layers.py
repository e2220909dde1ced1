"""linear_float32 never rounds to 16 bits, whatever the block; Rope gives the rotary angles."""

from __future__ import annotations

import math

import pytest
import torch

from moesaic.core.model import AttentionSpec
from moesaic.models import layers
from moesaic.models.layers import Rope, linear_float32
from tests.kernels.cases import DEVICES, DTYPE_IDS, DTYPES


@pytest.mark.parametrize("blocks", [1, 3, 7])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("num_tokens", [0, 1, 5])
@pytest.mark.parametrize("device", DEVICES)
def test_products_are_float32_and_not_rounded(device, num_tokens, dtype, blocks, monkeypatch):
    x, weight = torch.randn(num_tokens, 32).to(device, dtype), torch.randn(21, 32).to(device, dtype)
    monkeypatch.setattr(layers, "_WIDENED_BYTES", 4 * 32 * -(-21 // blocks))
    actual = linear_float32(x, weight)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), x.double() @ weight.double().T, rtol=1e-5, atol=1e-5)


def test_rope_turns_pair_i_by_position_over_theta_to_the_2i_over_d():
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=8, rope_theta=1000.0)
    cos_TD, sin_TD = Rope.build(spec, torch.device("cpu"))(torch.tensor([0, 1, 517]))
    assert cos_TD.dtype == sin_TD.dtype == torch.float32
    for t, position in enumerate((0, 1, 517)):
        for i in range(8):
            angle = position * 1000.0 ** (-2 * (i % 4) / 8)
            assert cos_TD[t, i].item() == pytest.approx(math.cos(angle), abs=1e-4)
            assert sin_TD[t, i].item() == pytest.approx(math.sin(angle), abs=1e-4)
