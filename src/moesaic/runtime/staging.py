"""Small host values on their way to the device: pinned buffers, filled anew every step, copied without waiting."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Staging:
    """Uploads lists of numbers as int64 or float64 tensors, asynchronously on CUDA.

    `begin_step()` turns to the other one of two pinned buffers and waits, if need be, until the copies made out of it
    two steps ago have run. Uploads belong to the current stream.
    """

    def __init__(self, device: torch.device, num_values: int) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._used = 0
        self._turn = 0
        self._buffers = [_pinned(num_values) for _ in range(2)] if self._cuda else []
        self._copied: list[torch.cuda.Event | None] = [None, None]

    def begin_step(self) -> None:
        if not self._cuda:
            return
        if self._used:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
            self._copied[self._turn] = event
        self._turn, self._used = 1 - self._turn, 0
        before = self._copied[self._turn]
        if before is not None:
            before.synchronize()

    def upload(self, values: Sequence[int] | Sequence[float], dtype: torch.dtype = torch.int64) -> Tensor:
        """`values` as a new device tensor [len(values)] of an 8-byte dtype."""
        assert dtype.itemsize == 8, dtype
        host = torch.tensor(values, dtype=dtype)
        if not self._cuda:
            return host
        end = self._used + len(values)
        if end > self._buffers[self._turn].numel():
            # copies under way may still read the old buffer: the caching host allocator keeps it until they are done
            self._buffers[self._turn] = _pinned(2 * end)
            self._used, end = 0, len(values)
        staged = self._buffers[self._turn][self._used : end].view(dtype)
        self._used = end
        staged.copy_(host)
        return staged.to(self._device, non_blocking=True)


def _pinned(num_values: int) -> Tensor:
    return torch.empty(num_values, dtype=torch.int64, pin_memory=True)
