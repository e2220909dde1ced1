"""The Triton RMSNorm against its slow twin."""

from __future__ import annotations

import pytest
import torch

from moesaic.kernels import reference
from tests.kernels.cases import DTYPE_IDS, DTYPES, close

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 3, 40), (5, 4096), (300, 133), (0, 16), (64,)], ids=str)
def test_rms_norm_equals_the_slow_twin(shape, dtype):
    from moesaic.kernels.triton.rms_norm import rms_norm

    x = (3 * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))).to("cuda", dtype)
    weight = torch.randn(shape[-1], generator=torch.Generator().manual_seed(1)).to("cuda", dtype)
    assert close(rms_norm(x, weight, 1e-3), reference.rms_norm(x, weight, 1e-3), dtype)


def test_rms_norm_of_a_column_slice_reads_only_the_slice():
    from moesaic.kernels.triton.rms_norm import rms_norm

    wide = torch.full((6, 64), float("nan"), device="cuda")
    wide[:, 8:40] = torch.randn(6, 32, device="cuda")
    weight = torch.ones(32, device="cuda")
    assert torch.equal(rms_norm(wide[:, 8:40], weight, 1e-6), rms_norm(wide[:, 8:40].contiguous(), weight, 1e-6))
