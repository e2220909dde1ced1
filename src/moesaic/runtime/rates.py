"""The few rates that assignment policies weigh, measured at start on the model's own experts in under a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from moesaic.core.places import DEVICE, HOST, HardwareProfile, LinkSpec, TierSpec
from moesaic.kernels.api import ExpertPages, ExpertRows, ExpertShape, Kernels, SlotTable

ROWS = 64  # enough for a rate in flops, few enough to be quick


def measure_profile(
    host_SB: Tensor, device_SB: Tensor, shape: ExpertShape, dtype: torch.dtype, kernels: tuple[Kernels, Kernels]
) -> HardwareProfile:
    """Rates of host, device and the link between, from one expert's pages. `dtype` is that of activations; `kernels`
    are the device's and the host's.

    The device's first expert slot is overwritten: call before anything is resident. Needs one slot at least.
    """
    n = shape.num_pages
    expert_bytes = n * host_SB.shape[1]
    copy_s = _best_s(lambda: device_SB[:n].copy_(host_SB[:n], non_blocking=True), device_SB.device)
    link = LinkSpec(expert_bytes / copy_s)
    host = _tier(kernels[1], host_SB, shape, dtype)
    # where the device is a pool in host memory, one processor serves both: one rate, and the same answers every run
    device = _tier(kernels[0], device_SB, shape, dtype) if device_SB.is_cuda else host
    return HardwareProfile(
        "this machine",
        {HOST: host, DEVICE: device},
        {(HOST, DEVICE): link, (DEVICE, HOST): link},
        source="measured at start on the model's own experts",
    )


def _tier(kernels: Kernels, slab_SB: Tensor, shape: ExpertShape, dtype: torch.dtype) -> TierSpec:
    """Bandwidth from one row, which reads every weight once; flops from many rows."""
    device = slab_SB.device
    pages = ExpertPages(slab_SB, SlotTable(None, [range(shape.num_pages)]), shape)
    x_TH = torch.ones(ROWS, shape.hidden, dtype=dtype, device=device)

    def seconds(num_rows: int) -> float:
        token_M, weight_M = torch.arange(num_rows, device=device), torch.ones(num_rows, device=device)
        rows = ExpertRows(token_M, weight_M, None, [0, num_rows])
        out_TH = torch.zeros(num_rows, shape.hidden, device=device)
        return _best_s(lambda: kernels.grouped_experts(x_TH[:num_rows], rows, pages, out_TH).wait(), device)

    flops = 6.0 * shape.hidden * shape.intermediate * ROWS
    return TierSpec(0, shape.num_pages * slab_SB.shape[1] / seconds(1), flops / seconds(ROWS))


def _best_s(work: Callable[[], object], device: torch.device, repeats: int = 3) -> float:
    best_s = float("inf")
    for _ in range(repeats):
        start_s = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best_s = min(best_s, time.perf_counter() - start_s)
    return best_s
